// SPDX-License-Identifier: Apache-2.0

package division

import "cmp"

// queued is a cluster with requests that may fit.
type queued struct {
	name     string
	priority int32
	share    float64
	requests []Request
}

// queue is a heap of clusters, the next to be served first.
type queue []*queued

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[j].priority, q[i].priority), cmp.Compare(q[i].share, q[j].share), cmp.Compare(q[i].name, q[j].name)) < 0
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(item any) { *q = append(*q, item.(*queued)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	item := (*q)[last]
	*q = (*q)[:last]
	return item
}
