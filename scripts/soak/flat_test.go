package main

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// What the system takes more at the end is named, and what it may take is not.
func TestFlatNamesWhatHasGrown(t *testing.T) {
	start := func() *use {
		return &use{descriptors: map[string]int{"router": 10, "scheduler": 20, "smtpserver": 30},
			memory: map[string]int64{"router": 10 << 20, "scheduler": 20 << 20, "smtpserver": 30 << 20}, files: []string{"a", "b"}}
	}
	for name, c := range map[string]struct {
		change func(u *use)
		want   int
	}{
		"nothing":              {func(*use) {}, 0},
		"a few descriptors":    {func(u *use) { u.descriptors["router"] += moreDescriptors }, 0},
		"too many descriptors": {func(u *use) { u.descriptors["router"] += moreDescriptors + 1 }, 1},
		"some memory":          {func(u *use) { u.memory["scheduler"] += moreMemory }, 0},
		"too much memory":      {func(u *use) { u.memory["scheduler"] += moreMemory + 1 }, 1},
		"some files":           {func(u *use) { u.files = append(u.files, slices.Repeat([]string{"c"}, moreFiles)...) }, 0},
		"too many files":       {func(u *use) { u.files = append(u.files, slices.Repeat([]string{"c"}, moreFiles+1)...) }, 1},
		"everything of all": {func(u *use) {
			maps.Copy(u.descriptors, map[string]int{"router": 99, "scheduler": 99, "smtpserver": 99})
		}, 3},
	} {
		end := start()
		c.change(end)
		if got := start().flat(end); len(got) != c.want {
			t.Errorf("%s: got %s, want %d problems", name, fmt.Sprint(got), c.want)
		}
	}
}
