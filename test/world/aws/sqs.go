// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"cmp"
	"context"
	"crypto/md5" // SQS's own checksum of a message
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"time"
)

// queue is a queue of SQS. A message that was received is hidden for the time that the receiver asked for.
type queue struct {
	messages []*message
	// arrived is closed when a message arrives.
	arrived chan struct{}
}

type message struct {
	id, body string
	sent     time.Time
	receipt  string
	hidden   time.Time
}

// CreateQueue makes an empty queue.
func (a *Account) CreateQueue(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queues[name] = &queue{arrived: make(chan struct{})}
}

// Messages is how many messages of a queue weren't deleted yet.
func (a *Account) Messages(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.queues[name]; q != nil {
		return len(q.messages)
	}
	return 0
}

// SendEvent puts an event of EventBridge's into a queue, as a rule of it would.
func (a *Account) SendEvent(name, source, detailType string, detail map[string]string) error {
	body, err := json.Marshal(map[string]any{
		"version": "0", "id": requestID(), "detail-type": detailType, "source": source, "account": a.cfg.Account,
		"time": a.cfg.Now().UTC().Format(time.RFC3339), "region": a.cfg.Region, "resources": []string{}, "detail": detail,
	})
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.queues[name]
	if q == nil {
		return fmt.Errorf("there is no queue %s", name)
	}
	q.messages = append(q.messages, &message{id: requestID(), body: string(body), sent: a.cfg.Now()})
	close(q.arrived)
	q.arrived = make(chan struct{})
	return nil
}

// InterruptSpot warns of the end of a spot instance two minutes before it.
func (a *Account) InterruptSpot(queue, instance string) error {
	return a.SendEvent(queue, "aws.ec2", "EC2 Spot Instance Interruption Warning", map[string]string{"instance-id": instance, "instance-action": "terminate"})
}

// queueRequest is what the requests to SQS say.
type queueRequest struct {
	QueueName, QueueUrl, ReceiptHandle                      string
	MaxNumberOfMessages, VisibilityTimeout, WaitTimeSeconds int
}

func (r queueRequest) name() string { return cmp.Or(r.QueueName, path.Base(r.QueueUrl)) }

// queueARN is the name that policies give to the queue of a request.
func (a *Account) queueARN(body []byte) string {
	var request queueRequest
	_ = readJSON(body, &request) // the service reports what is wrong with it
	return fmt.Sprintf("arn:aws:sqs:%s:%s:%s", a.cfg.Region, a.cfg.Account, request.name())
}

func (a *Account) serveSQS(w http.ResponseWriter, r *http.Request, action string, body []byte) {
	var request queueRequest
	if problem := readJSON(body, &request); problem != nil {
		failJSON(w, problem)
		return
	}
	name := request.name()
	a.mu.Lock()
	q := a.queues[name]
	a.mu.Unlock()
	if q == nil {
		w.Header().Set("X-Amzn-Query-Error", "AWS.SimpleQueueService.NonExistentQueue;Sender")
		failJSON(w, &Error{http.StatusBadRequest, "com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist."})
		return
	}
	switch action {
	case "GetQueueUrl":
		writeJSON(w, http.StatusOK, map[string]string{"QueueUrl": fmt.Sprintf("http://%s/%s/%s", r.Host, a.cfg.Account, name)})
	case "ReceiveMessage":
		wait := time.Duration(request.WaitTimeSeconds) * time.Second
		received := a.receive(r.Context(), q, wait, time.Duration(request.VisibilityTimeout)*time.Second, max(request.MaxNumberOfMessages, 1))
		writeJSON(w, http.StatusOK, map[string]any{"Messages": received})
	case "DeleteMessage":
		a.mu.Lock()
		for i, m := range q.messages {
			if m.receipt == request.ReceiptHandle {
				q.messages = append(q.messages[:i:i], q.messages[i+1:]...)
				break
			}
		}
		a.mu.Unlock()
		writeJSON(w, http.StatusOK, struct{}{})
	default:
		failJSON(w, a.unknownAction("sqs", action))
	}
}

// receive takes messages that aren't hidden, and waits for the first.
func (a *Account) receive(ctx context.Context, q *queue, wait, hide time.Duration, most int) []map[string]any {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		a.mu.Lock()
		now, next := a.cfg.Now(), time.Time{}
		var received []map[string]any
		for _, m := range q.messages {
			switch {
			case m.hidden.After(now):
				if next.IsZero() || m.hidden.Before(next) {
					next = m.hidden
				}
			case len(received) < most:
				m.receipt, m.hidden = rand.Text(), now.Add(hide)
				sum := md5.Sum([]byte(m.body))
				received = append(received, map[string]any{
					"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "MD5OfBody": hex.EncodeToString(sum[:]),
					"Attributes": map[string]string{"SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10)},
				})
			}
		}
		arrived := q.arrived
		a.mu.Unlock()
		if len(received) > 0 {
			return received
		}
		var visible <-chan time.Time
		if !next.IsZero() {
			visible = time.After(next.Sub(now))
		}
		select {
		case <-arrived:
		case <-visible:
		case <-ctx.Done():
			return nil
		}
	}
}
