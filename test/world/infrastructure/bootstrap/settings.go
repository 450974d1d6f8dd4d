// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// settings are flags that change nothing of what a Node is made of.
var settings = []struct {
	name string
	read func(value string) error
}{
	{"cluster-dns", areAddresses},
	{"eviction-soft", areThresholds},
	{"eviction-soft-grace-period", areGracePeriods},
	{"eviction-max-pod-grace-period", isNumber},
	{"image-gc-high-threshold", isShare},
	{"image-gc-low-threshold", isShare},
	{"cpu-cfs-quota", isTruth},
	{"pod-max-pids", isNumber},
}

// readSettings returns those of the flags, or the error with which a kubelet wouldn't start.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/apis/config/validation/validation.go
func readSettings(args map[string]string) (map[string]string, error) {
	found := map[string]string{}
	for _, flag := range settings {
		value, ok := args[flag.name]
		if !ok {
			continue
		}
		if err := flag.read(value); err != nil {
			return nil, fmt.Errorf("%s: %w", flag.name, err)
		}
		found[flag.name] = value
	}
	thresholds, _ := parseMap(found["eviction-soft"], "<")
	periods, _ := parseMap(found["eviction-soft-grace-period"], "=")
	for _, signal := range sortedKeys(thresholds) {
		if _, ok := periods[signal]; !ok {
			return nil, fmt.Errorf("eviction-soft: grace period must be specified for the soft eviction threshold %s", signal)
		}
	}
	high, _ := strconv.Atoi(cmp.Or(found["image-gc-high-threshold"], "85"))
	low, _ := strconv.Atoi(cmp.Or(found["image-gc-low-threshold"], "80"))
	if low >= high {
		return nil, fmt.Errorf("image-gc-low-threshold: %d must be less than image-gc-high-threshold %d", low, high)
	}
	return found, nil
}

func areAddresses(flag string) error {
	for address := range strings.SplitSeq(flag, ",") {
		if _, err := netip.ParseAddr(address); err != nil {
			return fmt.Errorf("%q is no IP address", address)
		}
	}
	return nil
}

func areThresholds(flag string) error {
	values, err := parseMap(flag, "<")
	if err != nil {
		return err
	}
	for _, signal := range sortedKeys(values) {
		if _, err := resourceOf(signal); err != nil {
			return err
		}
		if percent, ok := strings.CutSuffix(values[signal], "%"); ok {
			_, err = parsePercent(percent)
		} else {
			_, err = parseQuantity(values[signal])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", signal, err)
		}
	}
	return nil
}

func areGracePeriods(flag string) error {
	values, err := parseMap(flag, "=")
	if err != nil {
		return err
	}
	for _, signal := range sortedKeys(values) {
		if _, err := resourceOf(signal); err != nil {
			return err
		}
		if period, err := time.ParseDuration(values[signal]); err != nil || period < 0 {
			return fmt.Errorf("%s: %q is no grace period", signal, values[signal])
		}
	}
	return nil
}

func isNumber(flag string) error {
	if _, err := strconv.ParseInt(flag, 10, 64); err != nil {
		return fmt.Errorf("%q is no number", flag)
	}
	return nil
}

func isShare(flag string) error {
	if share, err := strconv.Atoi(flag); err != nil || share < 0 || share > 100 {
		return fmt.Errorf("%q is not between 0 and 100", flag)
	}
	return nil
}

func isTruth(flag string) error {
	if _, err := strconv.ParseBool(flag); err != nil {
		return errors.New(strconv.Quote(flag) + " is neither true nor false")
	}
	return nil
}
