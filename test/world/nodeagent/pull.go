// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// errPullShown is how long a failed pull shows its own reason before the back-off's.
const errPullShown = time.Second

// pull is a container's way to its image.
type pull struct {
	img     *image
	results chan pullResult // while a pull is under way
	began   time.Time

	err       error
	failed    time.Time
	notBefore time.Time
	backoff   backoff
}

type pullResult struct {
	img *image
	err error
}

// image returns the container's image once it is here, and nil, having said what is waited for, until then.
func (c *container) image(ctx context.Context, pod *corev1.Pod) *image {
	p, now := &c.pull, time.Now()
	if p.results != nil {
		select {
		case result := <-p.results:
			p.results = nil
			c.pulled(result, now)
		default:
			c.wait(c.creating(pod), "", time.Time{})
			return nil
		}
	}
	if p.img != nil && p.img.reference == c.spec.Image {
		return p.img
	}
	if p.err != nil && now.Before(p.notBefore) {
		c.waitForPull(now)
		return nil
	}
	if c.spec.ImagePullPolicy != corev1.PullAlways {
		if img, ok := c.worker.agent.images.present(c.spec.Image); ok {
			c.event(corev1.EventTypeNormal, "Pulled", "Container image %q already present on machine", c.spec.Image)
			p.img, p.err = img, nil
			return img
		}
	}
	if c.spec.ImagePullPolicy == corev1.PullNever {
		c.wait(reasonErrImageNeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", c.spec.Image), now.Add(c.backoff.base))
		return nil
	}
	c.beginPull(ctx, pod, now)
	return nil
}

func (c *container) beginPull(ctx context.Context, pod *corev1.Pod, now time.Time) {
	var secrets []*corev1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := c.worker.objects.secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			// Perhaps the image needs none.
			c.event(corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", "Unable to retrieve image pull secret %s: %v", ref.Name, err)
			continue
		}
		secrets = append(secrets, secret)
	}
	c.event(corev1.EventTypeNormal, "Pulling", "Pulling image %q", c.spec.Image)
	results := make(chan pullResult, 1)
	c.pull.results, c.pull.began = results, now
	worker, reference := c.worker, c.spec.Image
	worker.pulls.Go(func() {
		img, err := worker.agent.images.pull(ctx, reference, secrets)
		results <- pullResult{img, err}
		worker.wake()
	})
	c.wait(c.creating(pod), "", time.Time{})
}

// pulled notes the result of a pull.
func (c *container) pulled(result pullResult, now time.Time) {
	p := &c.pull
	p.img, p.err = result.img, result.err
	if p.err == nil {
		c.event(corev1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %s", c.spec.Image, now.Sub(p.began).Round(time.Millisecond))
		p.backoff.next = 0
		return
	}
	p.backoff.base, p.backoff.maximum = c.backoff.base, c.backoff.maximum
	p.backoff.next = max(p.backoff.next, p.backoff.base) // unlike a crash, already the first failure waits
	p.failed, p.notBefore = now, now.Add(p.backoff.after(0))
	c.event(corev1.EventTypeWarning, "Failed", "%v", p.err)
	c.worker.log.Info("Image can't be pulled", "container", c.spec.Name, "cause", p.err.Error())
}

// waitForPull shows why the last pull failed, and then that another follows.
func (c *container) waitForPull(now time.Time) {
	p := &c.pull
	reason := reasonErrImagePull
	var typed *imageError
	if errors.As(p.err, &typed) {
		reason = typed.reason
	}
	if shown := p.failed.Add(min(errPullShown, p.notBefore.Sub(p.failed)/2)); now.Before(shown) {
		c.wait(reason, p.err.Error(), shown)
		return
	}
	if reason == reasonErrImagePull {
		if c.reason != reasonImagePullBackOff {
			c.event(corev1.EventTypeNormal, "BackOff", "Back-off pulling image %q", c.spec.Image)
		}
		reason = reasonImagePullBackOff
	}
	c.wait(reason, fmt.Sprintf("Back-off pulling image %q: %v", c.spec.Image, p.err), p.notBefore)
}

// creating is what a container without trouble waits for. One that has run shows its end rather.
func (c *container) creating(pod *corev1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 && c.kind != kindInit && !c.ranOnce {
		return reasonPodInitializing
	}
	return reasonContainerCreating
}
