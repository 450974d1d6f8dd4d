// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package room

func read() (Free, bool) { return Free{}, false }
