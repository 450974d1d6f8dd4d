// Search of all pages, in the browser: the index is one file of this site.
const input = document.getElementById("search");
const list = document.getElementById("found");
let pages;

// On a narrow screen the menu is closed to begin with.
if (matchMedia("(max-width: 50rem)").matches) document.querySelector("nav details").open = false;

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  pages ??= await (await fetch(input.dataset.index)).json();
  const hits = [];
  for (const page of words.length ? pages : []) {
    const title = page.title.toLowerCase(), text = page.text.toLowerCase();
    if (!words.every((word) => title.includes(word) || text.includes(word))) continue;
    const score = words.reduce((sum, word) => sum + (title.includes(word) ? 50 : 0) + Math.min(text.split(word).length, 20), 0);
    hits.push({ page, score, at: Math.max(0, text.indexOf(words[0]) - 60) });
  }
  hits.sort((a, b) => b.score - a.score);
  list.replaceChildren(...hits.slice(0, 12).map(({ page, at }) => {
    const item = document.createElement("li"), link = document.createElement("a"), excerpt = document.createElement("small");
    link.href = input.dataset.root + page.url;
    link.textContent = page.title;
    excerpt.textContent = "…" + page.text.slice(at, at + 160) + "…";
    item.append(link, excerpt);
    return item;
  }));
  list.hidden = hits.length === 0;
}

input.addEventListener("input", search);
input.addEventListener("keydown", (event) => { if (event.key === "Escape") { input.value = ""; list.hidden = true; } });
