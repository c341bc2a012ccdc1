package main

import (
	"fmt"
	"testing"
)

// TestCellTargets judges made-up results.
func TestCellTargets(t *testing.T) {
	got := fmt.Sprint(cellTargets([]record{{Impl: "println", MedianMS: 250}, {Impl: "xla", MedianMS: 1001, Cost: 4}}))
	if want := "[FAIL: xla takes at most 1.0 s PASS: xla takes at most 4 times println]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
