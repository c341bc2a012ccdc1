package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// tiny is what ranks learn in these tests.
var tiny = append(slices.Clone(together), "--engine", "mpi")

// mpirun has a number of ranks run a command line, which may begin with more options of mpirun, and returns what they
// all said and the status.
func mpirun(t *testing.T, ranks int, line ...string) (output string, status int) {
	t.Helper()
	line = append([]string{"mpirun", "--oversubscribe", "-n", strconv.Itoa(ranks)}, line...)
	output, state, err := systest.Ranks(t, envMain+"=1", line...)
	if state == nil {
		t.Fatal(err)
	}
	return output, state.ExitCode()
}

// errorLines are the errors of the command in an output.
func errorLines(output string) (lines []string) {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "shardbook:") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// trainedByRanks is trained with ranks in processes.
func trainedByRanks(t *testing.T, ranks int, args ...string) (r trainResult) {
	t.Helper()
	output, status := mpirun(t, ranks, slices.Concat([]string{mpiCommand(t)}, args, []string{"--json"})...)
	found := 0
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "{") {
			found++
			must.Do(t, json.Unmarshal([]byte(line), &r))
		}
	}
	if status != 0 || found != 1 {
		t.Fatalf("%q: status %d, %d results: %s", args, status, found, output)
	}
	return r
}

// Ranks in processes learn what one device does, but for rounding, and the same bits as ranks in one process.
func TestTrainByProcesses(t *testing.T) {
	bits := trained(t, append(slices.Clone(together),
		strings.Fields("--steps 16 --data 2 --sync overlap --accumulate 2")...)...)
	bits.Text = oneDevice(t).Text
	for _, c := range []struct {
		ranks  int
		flags  string
		want   trainResult
		within float64
		peaks  []int // as --engine local has them
	}{
		{2, "--sync overlap --accumulate 2", bits, 0, nil},
		{4, "--pipe 2 --cut measured", oneDevice(t), 1e-5, []int{2, 1}},
		{2, "--layers 2 --pipe 2 --data 2 --zero 2", deeper(t), 1e-5, nil}, // each with two devices
	} {
		args := slices.Concat(tiny, strings.Fields(c.flags), []string{"--steps", strconv.Itoa(len(c.want.Losses)),
			"--sample",
			"3", "--temperature", "0"})
		got := trainedByRanks(t, c.ranks, args...)
		if !near(got.Losses, c.want.Losses, c.within) || got.Text != c.want.Text {
			t.Errorf("%s: losses %v, text %q, want %v, %q", c.flags, got.Losses, got.Text, c.want.Losses, c.want.Text)
		}
		if p := got.Pipeline; c.peaks != nil && (p == nil || !slices.Equal(p.PeakActivations, c.peaks)) {
			t.Errorf("%s: pipeline %+v, want peaks of %v", c.flags, p, c.peaks)
		}
	}
}

// A run goes on from one engine to the other, and with another number of processes.
func TestTrainByProcessesResumes(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	args := append(slices.Clone(tiny), "--zero", "3", "--prefetch", "1")
	want := oneDevice(t).Losses
	resume := []string{"train", "--resume", "--checkpoint", folder, "--steps"}
	losses := trainedByRanks(t, 3, append(args, "--checkpoint", folder, "--steps", "3")...).Losses
	losses = append(losses, trained(t, append(resume, "5")...).Losses...)
	losses = append(losses, trainedByRanks(t, 2, append(resume, "8", "--engine", "mpi")...).Losses...)
	if !near(losses, want[:8], 1e-5) {
		t.Errorf("losses %v, without stops %v", losses, want)
	}
}

// What is wrong with one rank or with all is said once, before anything is compiled, and ends all.
func TestTrainByUnlikeProcesses(t *testing.T) {
	command := mpiCommand(t)
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	program, err := os.ReadFile(command)
	if err == nil {
		err = os.WriteFile(other, append(program, 0), 0o755)
	}
	must.Do(t, err)
	// wrong is the command, with something wrong where the shell's test is true.
	const second, all = "$OMPI_COMM_WORLD_RANK = 1", "1 = 1"
	scripts := 0
	wrong := func(where, script string) string {
		scripts++
		path := filepath.Join(dir, "script"+strconv.Itoa(scripts))
		text := fmt.Sprintf("#!/bin/sh\nprogram=%s\nif [ %s ]; then %s; fi\nexec $program \"$@\"\n", command, where,
			script)
		writeFile(t, path, text)
		return path
	}
	untagged := "program=" + os.Args[0] // as the command, which the environment makes it
	for _, c := range []struct {
		name, program, flags, want string
	}{
		{"another rate", wrong(second, `set -- "$@" --lr 0.1`), "", "has --lr 0.1, rank 0 on "},
		{"another program", wrong(second, "program="+other), "", "has a program of SHA-256 "},
		{"no plugin", wrong(second, "export SHARDBOOK_PLUGIN=/no/such/plugin.so"), "",
			`: plugin "/no/such/plugin.so": no such file`},
		{"another folder", wrong(second, fmt.Sprintf(`set -- "$@" --checkpoint %s/b`, dir)),
			"--checkpoint " + dir + "/a",
			"give a folder that all hosts share"},
		{"another build", wrong(second, untagged), "", "build with -tags mpi"},
		{"all another build", wrong(all, untagged), "", "build with -tags mpi"},
		{"no such flag", command, "--no-such-flag", "unknown flag: --no-such-flag"},
		{"too many", command, "--data 3", "--data=3 ranks need 3 processes, and there are 2"},
		{"diverges", command, "--lr 1e30", "the loss is"},
	} {
		output, status := mpirun(t, 2, slices.Concat([]string{c.program}, tiny, strings.Fields(c.flags))...)
		if said := errorLines(output); status != 1 || len(said) != 1 || !strings.Contains(said[0], c.want) {
			t.Errorf("%s: status %d, errors %q, want status 1 and one that says %q:\n%s", c.name, status, said,
				c.want, output)
		}
	}
}

// running starts a run of three ranks and has something done to it once it has made some steps.
func running(t *testing.T, options, flags []string, meanwhile func(mpirun int)) (output, folder string, status int) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "run")
	args := append(slices.Clone(tiny), "--steps", "1000000", "--save-every", "5", "--checkpoint", folder, "--timeout",
		"15s")
	line := slices.Concat(options, []string{mpiCommand(t)}, args, flags)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(folder, "step-00000010")); err == nil {
				break
			}
		}
		found, _ := exec.Command("pgrep", "-f", "^mpirun .*"+folder).Output()
		if pid, err := strconv.Atoi(strings.TrimSpace(string(found))); err == nil {
			meanwhile(pid)
		}
	}()
	output, status = mpirun(t, 3, line...)
	<-done
	return output, folder, status
}

// A rank that is killed or stopped is named by each of the others, which end; mpirun starts none again.
func TestTrainProcessFails(t *testing.T) {
	type failure struct {
		signal         syscall.Signal
		options, flags []string
		status         int
	}
	for _, c := range systest.OfFull(t, 1, []failure{
		// which has mpirun let the others run on, and be content
		{syscall.SIGKILL, []string{"--enable-recovery"}, nil, 0},
		{syscall.SIGSTOP, nil, []string{"--pipe", "3"}, mpijob.StatusFailed},
	}) {
		output, _, status := running(t, c.options, c.flags, func(mpirun int) {
			ranks, _ := exec.Command("pgrep", "-P", strconv.Itoa(mpirun)).Output()
			for _, rank := range strings.Fields(string(ranks)) {
				environment, _ := os.ReadFile(filepath.Join("/proc", rank, "environ"))
				if pid, err := strconv.Atoi(rank); err == nil && strings.Contains(string(environment),
					"OMPI_COMM_WORLD_RANK=2\x00") {
					syscall.Kill(pid, c.signal)
				}
			}
		})
		said := errorLines(output)
		slices.Sort(said)
		host, _ := os.Hostname()
		for i, line := range said {
			if want := fmt.Sprintf("shardbook: rank %d on %s: rank 2 on %[2]s did not answer within 15s", i,
				host); !strings.HasPrefix(line, want) {
				t.Errorf("%v: %q, want %q", c.signal, line, want)
			}
		}
		if status != c.status || len(said) != 2 {
			t.Errorf("%v: status %d, %d errors, want %d and one of each rank that is left:\n%s", c.signal, status,
				len(said), c.status, output)
		}
	}
}

// A run that mpirun passes a signal to is saved behind the same step on all ranks.
func TestTrainByProcessesInterrupted(t *testing.T) {
	output, folder, status := running(t, nil, []string{"--zero", "3"}, func(mpirun int) {
		syscall.Kill(mpirun, syscall.SIGUSR1)
	})
	want := fmt.Sprintf("interrupted after step %d, which is saved", newestStep(t, folder))
	if said := errorLines(output); status != 1 || len(said) != 1 || !strings.Contains(said[0], want) {
		t.Errorf("status %d, errors %q, want status 1 and %q: %s", status, said, want, output)
	}
}
