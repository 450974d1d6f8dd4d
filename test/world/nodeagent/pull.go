// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"

	"github.com/autonode-io/autonode/payload"
)

// pull is a container's way to its image.
type pull struct {
	img     *image
	results chan pullResult // while a pull is in progress
	began   time.Time

	err       error
	notBefore time.Time
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
			return nil
		}
	}
	switch {
	case p.img != nil && p.img.reference == c.spec.Image:
		return p.img
	case p.err != nil && now.Before(p.notBefore):
		c.wait(reasonImagePullBackOff, fmt.Sprintf("Back-off pulling image %q: %v", c.spec.Image, p.err), p.notBefore)
		return nil
	}
	if c.spec.ImagePullPolicy != corev1.PullAlways {
		if img, ok := c.worker.agent.images.present(c.spec.Image); ok {
			c.event(corev1.EventTypeNormal, "Pulled", "Container image %q already present on machine", c.spec.Image)
			p.img, p.err = img, nil
			return img
		}
	}
	if p.err == nil { // else the last failure stays visible
		c.wait(reasonContainerCreating, "", time.Time{})
	}
	c.beginPull(ctx, pod, now)
	return nil
}

func (c *container) beginPull(ctx context.Context, pod *corev1.Pod, now time.Time) {
	keychains := c.keychains(ctx, pod)
	c.event(corev1.EventTypeNormal, "Pulling", "Pulling image %q", c.spec.Image)
	results := make(chan pullResult, 1)
	c.pull.results, c.pull.began = results, now
	worker, reference := c.worker, c.spec.Image
	worker.pulls.Go(func() {
		img, err := worker.agent.images.pull(ctx, reference, keychains)
		results <- pullResult{img, err}
		worker.wake()
	})
}

// keychains are those of the pod's pull secrets, tried in order, or the anonymous one.
func (c *container) keychains(ctx context.Context, pod *corev1.Pod) []authn.Keychain {
	var keychains []authn.Keychain
	for _, ref := range pod.Spec.ImagePullSecrets {
		data, err := c.worker.objects.data(ctx, secrets, ref.Name)
		var keychain authn.Keychain
		if err == nil {
			keychain, err = payload.KeychainFromDockerConfig(data[corev1.DockerConfigJsonKey])
		}
		if err != nil {
			// Perhaps the image needs none.
			c.event(corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", "Unable to retrieve image pull secret %s: %v", ref.Name, err)
			continue
		}
		keychains = append(keychains, keychain)
	}
	if len(keychains) == 0 {
		return []authn.Keychain{authn.NewMultiKeychain()}
	}
	return keychains
}

// pulled notes the result of a pull.
func (c *container) pulled(result pullResult, now time.Time) {
	p := &c.pull
	p.img, p.err = result.img, result.err
	if p.err == nil {
		c.event(corev1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %s", c.spec.Image, now.Sub(p.began).Round(time.Millisecond))
		c.backoff.DeleteEntry(pullBackOff)
		return
	}
	c.backoff.Next(pullBackOff, now)
	p.notBefore = now.Add(c.backoff.Get(pullBackOff))
	c.event(corev1.EventTypeWarning, "Failed", "%v", p.err)
	c.worker.log.Info("Image can't be pulled", "container", c.spec.Name, "cause", p.err.Error())
}
