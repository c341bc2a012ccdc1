package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/hosts"
	"github.com/shardbook/shardbook/internal/mpijob"
)

// mpiTrain is a command line that trains on the reference text with a rank on each host.
func mpiTrain(h *hosts.Hosts, program string, flags ...string) []string {
	var line []string
	for _, name := range handedOver() {
		line = append(line, "-x", name)
	}
	line = append(append(line, program), tiny...)
	return h.MPIRun(0, 1, append(line, flags...)...)
}

// Ranks on three hosts learn the same as one device, except for rounding; see TestLaunchLosesHost for ranks without
// ZeRO.
func TestTrainAcrossHosts(t *testing.T) {
	h, program := hosts.New(t, 3), mpiCommand(t)
	want := oneDevice(t)
	for _, way := range []string{"--data 3 --zero 3", "--pipe 3",
		"--seq-parallel 6 --seq-ranks --seq-method hybrid --seq-ulysses 2"} {
		run := begin(t, both, mpiTrain(h, program, append(strings.Fields(way), "--steps", "8", "--json")...)...)
		status, results := run.status(), run.lines(`^{"losses"`)
		var got trainResult
		if status != 0 || len(results) != 1 || json.Unmarshal([]byte(results[0]), &got) != nil {
			t.Errorf("%s: status %d, %d results:\n%s", way, status, len(results), run.output())
			continue
		}
		if !near(got.Losses, want.Losses[:8], 1e-5) {
			t.Errorf("%s: losses %v, on one device %v", way, got.Losses, want.Losses)
		}
	}
	h.Wait()
}

// What one host alone lacks is one error, which names it, and the end of all ranks, before they train.
func TestTrainOnUnlikeHosts(t *testing.T) {
	h, program := hosts.New(t, 3), mpiCommand(t)
	folder, last := t.TempDir(), h.Names()[2]
	for _, c := range []struct {
		name, harm string   // what the shell does on the last host before it starts the program
		want       []string // in the one error
	}{
		{"no plugin", "export SHARDBOOK_PLUGIN=/no/such/plugin.so",
			[]string{"rank 2 on " + last, "/no/such/plugin.so"}},
		{"a folder of its own", "exec unshare --mount sh -c 'mount -t tmpfs none " + folder +
			` && exec "$0" "$@"' $program "$@"`,
			[]string{"rank 2 on " + last, folder + " is not the folder of rank 0", "all hosts share"}},
	} {
		wrapper := filepath.Join(t.TempDir(), "wrapper")
		script := fmt.Sprintf("#!/bin/sh\nprogram=%s\nif [ $(hostname) = %s ]; then %s; fi\nexec $program \"$@\"\n",
			program, last, c.harm)
		writeFile(t, wrapper, script)
		run := begin(t, both, mpiTrain(h, wrapper, "--steps", "4", "--checkpoint", folder)...)
		status, said := run.status(), run.lines(`^shardbook: `)
		lacks := func(part string) bool { return !strings.Contains(said[0], part) }
		if status != 1 || len(said) != 1 || slices.ContainsFunc(c.want, lacks) {
			t.Errorf("%s: status %d, errors %q, want status 1 and one that says %q:\n%s", c.name, status, said, c.want,
				run.output())
		}
		h.Wait()
	}
}

// Where mpirun is slow to notice, the ranks that a cut leaves name the one that they lost, and the job ends as one that
// is worth another try.
func TestTrainLosesHost(t *testing.T) {
	t.Parallel()
	h, program := hosts.New(t, 3), mpiCommand(t)
	log := filepath.Join(t.TempDir(), "log")
	line := mpiTrain(h, program, "--data", "3", "--steps", "1000000", "--timeout", "5s", "--log", log)
	line[slices.Index(line, "oob_tcp_keepalive_time")+1] = "60"
	run := begin(t, both, line...)
	run.until("the first steps", func() bool { return logged(log) >= 5 })
	h.Cut(2)
	run.until("the ranks that are left have said so", func() bool {
		for rank := range 2 {
			if len(run.lines(survivor(h, rank))) == 0 {
				return false
			}
		}
		return true
	})
	h.Mend(2) // mpirun also waits for its daemon on the failed host
	if status := run.status(); status != mpijob.StatusFailed {
		t.Errorf("status %d, want %d:\n%s", status, mpijob.StatusFailed, run.output())
	}
	h.Wait()
}

// survivor matches the error of another rank after rank 2 failed.
func survivor(h *hosts.Hosts, rank int) string {
	on := h.Names()
	return fmt.Sprintf("^shardbook: rank %d on %s: rank 2 on %s ", rank, regexp.QuoteMeta(on[rank]),
		regexp.QuoteMeta(on[2]))
}

// When a host is cut off the run goes on without it from its last checkpoint, and learns what one device learns.
func TestLaunchLosesHost(t *testing.T) {
	t.Parallel()
	h, program := hosts.New(t, 3), mpiCommand(t)
	on, folder := h.Names(), t.TempDir()
	log := filepath.Join(folder, "log")
	job := append(slices.Clone(small[1:]), "--steps", "40")
	want := unclipped(t)
	flags := append([]string{"launch", "--host", strings.Join(on, ":1,") + ":1", "--agent", h.Agent(), "--interface",
		hosts.Network,
		"--checkpoint", filepath.Join(folder, "run"), "--"}, job...)
	// The link is slow, so that the run does not end before the host is cut off.
	flags = append(flags, "--save-every", "2", "--link", "1e6", "--log", log)
	run := begin(t, both, h.Command(0, program, flags...).Args...)
	run.until("the first steps", func() bool { return logged(log) >= 5 })
	h.Cut(2)
	status := run.status()
	starts := run.lines(`^launch: start \d+: `)
	second := regexp.MustCompile(fmt.Sprintf(`^launch: start 2: hosts %s:1,%s:1, ranks 2, from step [1-9]`, on[0],
		on[1]))
	if status != 0 || len(starts) != 2 || !second.MatchString(starts[1]) {
		t.Errorf("status %d, starts %q, want status 0 and a second start on two hosts:\n%s", status, starts,
			run.output())
	}
	for _, says := range []string{"lost communication with a remote daemon", "node +" + on[2],
		"^launch: host " + on[2] +
			" is left out: "} {
		if len(run.lines(says)) == 0 {
			t.Errorf("no line says %q:\n%s", says, run.output())
		}
	}
	checkLog(t, log, want.Losses, 1e-5)
	h.Wait()
}
