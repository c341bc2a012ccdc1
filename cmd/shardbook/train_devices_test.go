package main

import "testing"

func TestSharedGPUs(t *testing.T) {
	for _, c := range []struct{ n, each, gpus, want int }{
		{4, 1, 4, 0}, {4, 1, 8, 0}, {4, 1, 1, 1}, {4, 1, 3, 3}, {8, 2, 3, 2}, {8, 4, 2, 0}, {8, 8, 4, 0}, {4, 2, 0, 0},
	} {
		if got := sharedGPUs(c.n, c.each, c.gpus); got != c.want {
			t.Errorf("%d devices, %d a rank, share %d of %d GPUs, want %d", c.n, c.each, got, c.gpus, c.want)
		}
	}
	for first, want := range []string{"0,1,2", "1,2,0", "2,0,1", "0,1,2"} {
		if got := gpusFrom(first, 3, ""); got != want {
			t.Errorf("from %d: %s, want %s", first, got, want)
		}
	}
	if got := gpusFrom(4, 3, "7, 5,GPU-1"); got != "5,GPU-1,7" {
		t.Errorf("of a list: %q", got)
	}
}

// Only a run with a trace does without CUDA graphs.
func TestTracedDevices(t *testing.T) {
	for file, want := range map[string]int{"": 0, "trace.json": 1} {
		if got := (trainOptions{trace: file}).traced(); len(got) != want {
			t.Errorf("--trace=%q: %d options, want %d", file, len(got), want)
		}
	}
}
