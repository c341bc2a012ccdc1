package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/params"
)

// asRootToo lets mpirun, and what stands in for it, run as root.
var asRootToo = []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}

// standIn puts a program of the shell called mpirun first in the path.
func standIn(t *testing.T, text string) (env []string) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "mpirun"), "#!/bin/sh\n"+text)
	return append(slices.Clone(asRootToo), "PATH="+dir+":"+os.Getenv("PATH"))
}

// saveJob makes a checkpoint of a step of a job, with nothing in it.
func saveJob(t *testing.T, dir string, step int, j *job.Job) {
	t.Helper()
	j.TextSHA = "of no text"
	tree := params.Tree{{Name: "nothing", Shape: tensors.FromScalar(float32(0)).Shape()}}
	if _, err := checkpoint.Save(t.Context(), dir, step, j, tree, []*tensors.Tensor{tensors.FromScalar(float32(0))},
		0); err != nil {
		t.Fatal(err)
	}
}

func TestLaunchRanks(t *testing.T) {
	for _, test := range []struct {
		flags       string
		slots, want int // 0 is an error
	}{
		{"--batch 12", 5, 4},
		{"--batch 12", 3, 3},
		{"--batch 12 --accumulate 2", 5, 3},
		{"--batch 12 --zero 3", 8, 6},
		{"--batch 12 --zero 3 --shards 2", 5, 4},
		{"--batch 7", 6, 1},
		{"--batch 12 --pipe 2", 7, 6},
		{"--batch 12 --layout pipe=2", 7, 6},
		{"--batch 12 --pipe 2 --microbatches 3", 9, 8},
		{"--batch 12 --pipe 4", 3, 0},
		{"--batch 12 --data 3", 5, 3},
		{"--batch 12 --data 3", 2, 0},
		{"--batch 12 --data 5", 5, 0},
		{"--batch 12 --data 2 --pipe 2", 5, 4},
		{"--batch 7 --accumulate 2", 4, 0},
		{"--batch 12 --servers 3 --sync ps", 4, 4},
	} {
		l, err := newLaunchJob(strings.Fields(test.flags), filepath.Join(t.TempDir(), "run"))
		must.Do(t, err)
		got, err := l.ranks(test.slots)
		if got != test.want && test.want > 0 || (err != nil) != (test.want == 0) {
			t.Errorf("%s, %d slots: %d ranks, %v, want %d", test.flags, test.slots, got, err, test.want)
		}
	}
}

// A job that is under way has its checkpoint's settings, whatever its number of devices was.
func TestLaunchResumed(t *testing.T) {
	dir := t.TempDir()
	j := job.New()
	j.Batch, j.Parallel.Zero, j.Parallel.Data, j.Parallel.Sync = 6, 3, 3, job.Ranks
	saveJob(t, dir, 5, j)
	log := filepath.Join(t.TempDir(), "log")
	l, err := newLaunchJob([]string{"--log", log}, dir)
	must.Do(t, err)
	if n, err := l.ranks(5); n != 3 || err != nil {
		t.Errorf("%d ranks of 5 slots, %v, want 3", n, err)
	}
	if n, err := l.ranks(2); n != 2 || err != nil {
		t.Errorf("%d ranks of 2 slots, %v, want 2", n, err)
	}
	args, err := l.start(2, 5)
	if want := []string{"train", "--log", log, "--engine", "mpi", "--checkpoint", dir, "--data", "2",
		"--resume"}; err != nil || !slices.Equal(args, want) {
		t.Errorf("%q, %v, want %q", args, err, want)
	}
	if p, err := l.progress(); err != nil || p.Saved != 5 || p.Reached >= 0 {
		t.Errorf("%+v, %v, want step 5 and nothing more known", p, err)
	}
	writeFile(t, log, "{\"step\":6}\n{\"step\":7}\n{\"ste")
	if p, err := l.progress(); err != nil || p.Saved != 5 || p.Reached != 7 {
		t.Errorf("%+v, %v, want steps 5 and 7", p, err)
	}
	if l, err = newLaunchJob([]string{"--lr", "3"}, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.ranks(2); err == nil || !strings.Contains(err.Error(), "--lr=3") {
		t.Errorf("%v, want that the run has another --lr", err)
	}
}

// The command starts train again as it was given, but for where it goes on; what a lost start logged without a
// checkpoint is gone, and what was logged before the command, as by one that was killed, is kept.
func TestLaunchTwice(t *testing.T) {
	dir := t.TempDir()
	folder, log, lines := filepath.Join(dir, "run"), filepath.Join(dir, "log"), filepath.Join(dir, "lines")
	// The first start makes two steps and loses a rank, the second a checkpoint, too, and the third ends well.
	text := fmt.Sprintf(`lines=%s; log=%s; echo "mpirun $*" >>$lines; env | grep -c ^SHARDBOOK_LAUNCH= >>$lines
case $(wc -l <$lines) in
2) [ -s $log ] && exit 1; echo '{"step":1}' >>$log; echo '{"step":2}' >>$log; exit 75 ;;
4) [ -s $log ] && exit 1; echo '{"step":1}' >>$log; mkdir %s; mv %s/* %[3]s; kill -9 $$ ;;
6) echo result; exit 0 ;;
esac
exit 1
`, lines, log, folder, filepath.Join(dir, "ready"))
	j := job.New()
	j.Batch = 4
	saveJob(t, filepath.Join(dir, "ready"), 1, j)
	for path, text := range map[string]string{log: "{\"step\":1}\n{\"ste", log + ".1": "older"} {
		writeFile(t, path, text)
	}
	out, stderr, status := shardbook(t, append(standIn(t, text), "XLA_FLAGS=", "SHARDBOOK_X=1"), "launch", "--slots",
		"3", "--checkpoint", folder, "--mpirun-arg", "--tag-output", "--restarts", "2", "--", "--batch", "4", "--log",
		log)
	data, err := os.ReadFile(lines)
	if err != nil {
		t.Fatal(err, stderr)
	}
	said := strings.Split(strings.TrimSpace(string(data)), "\n")
	if status != 0 || out != "result\n" || len(said) != 6 {
		t.Fatalf("status %d, output %q, started %q: %s", status, out, said, stderr)
	}
	self := must.Get(filepath.Abs(os.Args[0]))(t)
	train := fmt.Sprintf(" --tag-output %s train --batch 4 --log %s --engine mpi --checkpoint %s --data 2", self, log,
		folder)
	for i, end := range []string{train, train, train + " --resume"} {
		if line := said[2*i]; !strings.HasPrefix(line, "mpirun -n 2 --host localhost:3 ") || !strings.HasSuffix(line,
			end) ||
			!strings.Contains(line, " -x SHARDBOOK_X") || !strings.Contains(line, " -x XLA_FLAGS") {
			t.Errorf("start %d: %q, want its end to be %q", i+1, line, end)
		}
		if said[2*i+1] != "1" {
			t.Errorf("start %d: no mark in the environment", i+1)
		}
	}
	for _, want := range []string{"start 1: hosts localhost:3, ranks 2, from step 0\n", "status 75",
		"start 2: hosts localhost:3, ranks 2, from step 0\n",
		"status 137", "start 3: hosts localhost:3, ranks 2, from step 1\n",
		"done at start 3; the restarts repeated 2, 0 steps\n"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not said: %s", want, stderr)
		}
	}
	if kept, err := os.ReadFile(log + ".2"); string(kept) != "{\"step\":1}\n" || !strings.Contains(stderr,
		"they are in "+log+".2 now") {
		t.Errorf("%q of the log is kept, %v: %s", kept, err, stderr)
	}
}

// Only what is a log is set aside or emptied.
func TestLaunchLeavesOtherFiles(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for _, text := range []string{"", "my notes\n", "{\"step\":1}\nmy notes\n"} {
		writeFile(t, log, text)
		l := must.Get(newLaunchJob([]string{"--log", log}, "run"))(t)
		for l.starts = range 2 {
			kept, err := l.startOver()
			if now, _ := os.ReadFile(log); kept != "" || err != nil || string(now) != text {
				t.Errorf("%q became %q, kept in %q, %v", text, now, kept, err)
			}
		}
	}
}

// Statuses are passed on, or say that it is worth to try again later.
func TestLaunchStatus(t *testing.T) {
	for _, test := range []struct {
		mpirun, flags string
		want          int
		says          string
	}{
		{"exit 1", "--slots 2", 1, "status 1"},
		{"exit 3", "--slots 2", 3, "status 3"},
		{"exit 0", "--slots 2 --devices 2", 1, "--devices is for a single process"},
		{"exit 75", "--slots 2 --restarts 0", 75, "--restarts"},
		{"exit 0", "--host no-host --agent false", 75, "0 of 1 hosts answer"},
		{"exit 0", "--discover /bin/true", 75, "0 of 0 hosts answer"},
	} {
		args := append([]string{"launch", "--checkpoint", filepath.Join(t.TempDir(), "run")},
			strings.Fields(test.flags)...)
		_, stderr, status := shardbook(t, standIn(t, test.mpirun+"\n"), args...)
		if status != test.want || !strings.Contains(stderr, test.says) || strings.Count(stderr, "shardbook:") != 1 {
			t.Errorf("mpirun: %s, %s: status %d, want %d and one error with %q: %s", test.mpirun, test.flags, status,
				test.want, test.says, stderr)
		}
	}
}

// Where the hosts come from, if no flag says it.
func TestLaunchHosts(t *testing.T) {
	for _, name := range []string{"SLURM_JOB_NODELIST", envHostfile, envAgent} {
		t.Setenv(name, "")
	}
	file := filepath.Join(t.TempDir(), "hosts")
	writeFile(t, file, "f slots=2\n")
	scontrol := filepath.Dir(file) + "/scontrol"
	writeFile(t, scontrol, "#!/bin/sh\necho s\n")
	t.Setenv("PATH", filepath.Dir(file)+":"+os.Getenv("PATH"))
	check := func(o launchOptions, want, wantAgent string) {
		t.Helper()
		list, agent, err := o.hosts(t.Context())
		must.Do(t, err)
		hosts, err := list(t.Context())
		if err != nil || fmt.Sprint(hosts) != want || agent("h")[0] != wantAgent {
			t.Errorf("%v by %q, %v, want %s by %s", hosts, agent("h"), err, want, wantAgent)
		}
	}
	check(launchOptions{slots: 3}, "[localhost:3]", "ssh")
	t.Setenv(envHostfile, file)
	check(launchOptions{}, "[f:2]", "ssh")
	check(launchOptions{slots: 3}, "[localhost:3]", "ssh")
	t.Setenv("SLURM_JOB_NODELIST", "s")
	t.Setenv("SLURM_TASKS_PER_NODE", "4")
	check(launchOptions{}, "[s:4]", "srun")
	check(launchOptions{agent: "mine"}, "[s:4]", "mine")
	check(launchOptions{list: "a,b:2"}, "[a:1 b:2]", "ssh")
	t.Setenv(envAgent, "rsh")
	check(launchOptions{hostfile: file}, "[f:2]", "rsh")
	discover := filepath.Dir(file) + "/discover"
	writeFile(t, discover, "#!/bin/sh\necho f\necho g\n")
	check(launchOptions{hostfile: file, discover: discover}, "[f:2 g:1]", "rsh")
}

// A job under mpirun that is interrupted saves and ends, and the same command goes on with it, for the losses of one
// device.
func TestLaunchInterrupted(t *testing.T) {
	line := []string{mpiCommand(t), "launch", "--slots", "2", "--checkpoint"}
	folder := t.TempDir()
	log := filepath.Join(folder, "log")
	line = slices.Concat(append(line, filepath.Join(folder, "run"), "--"), small[1:],
		[]string{"--steps", "40", "--log", log, "--link", "1e6"}) // slow, so that it does not end before
	p := begin(t, both, line...)
	p.until("the first steps", func() bool { return logged(log) >= 3 })
	p.Process.Signal(syscall.SIGTERM)
	if status, said := p.status(), p.output(); status != 75 || !strings.Contains(said, "which is saved") ||
		strings.Contains(said, "start 2") {
		t.Fatalf("interrupted: status %d, want 75, and that a step is saved: %s", status, said)
	}
	p = begin(t, both, line...)
	if status, said := p.status(), p.output(); status != 0 || strings.Contains(said, "from step 0\n") ||
		!strings.Contains(said, "done at the first start") {
		t.Fatalf("again: status %d, want 0, and a step that it went on from: %s", status, said)
	}
	checkLog(t, log, unclipped(t).Losses, 1e-5)
}

// understood checks a command line of launch, on hosts with the given slots, up to the point where it would look for
// hosts.
func understood(t *testing.T, line []string, slots int) {
	t.Helper()
	root := newCommand()
	launch, args, err := root.Find(line)
	if err == nil {
		err = launch.ParseFlags(args)
	}
	if err != nil || launch.Name() != "launch" || launch.ArgsLenAtDash() != 0 {
		t.Fatalf("%q: %v", line, err)
	}
	job, err := newLaunchJob(launch.Flags().Args(), filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if n, err := job.ranks(slots); n != slots || err != nil {
		t.Errorf("%q: %d ranks of %d slots, %v", line, n, slots, err)
	}
}

// The command lines in docker/ are such as this program takes, and use all ranks that they ask for.
func TestLaunchManifests(t *testing.T) {
	text := readFile(t, "../../docker/mpijob.yaml")
	_, rest, _ := strings.Cut(text, "- shardbook\n")
	rest, _, ok := strings.Cut(rest, "resources:")
	var line []string
	for _, item := range regexp.MustCompile(`(?m)^ +- (\S+)$`).FindAllStringSubmatch(rest, -1) {
		line = append(line, item[1])
	}
	if !ok || !slices.Contains(line, "--") {
		t.Fatalf("the launcher's command line is %q", line)
	}
	understood(t, line, 8)

	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "shardbook"), "#!/bin/sh\nfor word; do echo \"$word\"; done\n")
	script := exec.CommandContext(t.Context(), "bash", "../../docker/train.sbatch", "--zero", "3", "--batch", "24")
	script.Env = append(os.Environ(), "CHECKPOINT=run", "PATH="+dir+":"+os.Getenv("PATH"))
	output := must.Get(script.Output())(t)
	understood(t, strings.Split(strings.TrimSpace(string(output)), "\n"), 8)
}
