package manifests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const sbatch = "../train.sbatch"

// directives are the options of sbatch(1), Slurm 22.05 and later, that the script may use, with their values.
var directives = map[string]*regexp.Regexp{
	"job-name":        regexp.MustCompile(`^[a-z-]+$`),
	"nodes":           regexp.MustCompile(`^[1-9]\d*(-[1-9]\d*)?$`),
	"ntasks-per-node": regexp.MustCompile(`^[1-9]\d*$`),
	"cpus-per-task":   regexp.MustCompile(`^[1-9]\d*$`),
	"time":            regexp.MustCompile(`^(\d+-)?\d\d:\d\d:\d\d$`),
	"requeue":         regexp.MustCompile(`^$`),
	"no-kill":         regexp.MustCompile(`^$`),
	"signal":          regexp.MustCompile(`^(B:)?(USR1|USR2|TERM)@\d+$`),
	"open-mode":       regexp.MustCompile(`^(append|truncate)$`),
	"output":          regexp.MustCompile(`^\S*%j\S*$`),
}

// checkDirectives returns an error for each unknown directive, and for those after the first command, which Slurm
// ignores.
func checkDirectives(text string) error {
	var errs []error
	begun := false
	for i, line := range strings.Split(text, "\n") {
		option, is := strings.CutPrefix(line, "#SBATCH ")
		switch {
		case strings.HasPrefix(line, "#SBATCH") && !is:
			errs = append(errs, fmt.Errorf("line %d: %q", i+1, line))
		case is && begun:
			errs = append(errs, fmt.Errorf("line %d: %q is after a command, where Slurm ignores it", i+1, line))
		case is:
			name, value, _ := strings.Cut(strings.TrimPrefix(option, "--"), "=")
			if want := directives[name]; want == nil || !strings.HasPrefix(option, "--") || !want.MatchString(value) {
				errs = append(errs, fmt.Errorf("line %d: %q", i+1, line))
			}
		case line != "" && line[0] != '#':
			begun = true
		}
	}
	return errors.Join(errs...)
}

func TestSbatchDirectives(t *testing.T) {
	data, err := os.ReadFile(sbatch)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if err := checkDirectives(text); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(text, "#!/bin/bash\n") {
		t.Error("the script does not begin with its interpreter")
	}
	for _, must := range []string{"\n#SBATCH --nodes=2-4\n", "\n#SBATCH --requeue\n"} {
		if !strings.Contains(text, must) {
			t.Errorf("the script does not have %q", must)
		}
	}
	for from, to := range map[string]string{"--requeue": "--requeu", "--nodes=2-4": "--nodes=2,4",
		"#SBATCH --time": "#SBATCH time", "set -u": "set -u\n#SBATCH --no-kill"} {
		if checkDirectives(strings.Replace(text, from, to, 1)) == nil {
			t.Errorf("%q instead of %q: no error", to, from)
		}
	}
	if output, err := exec.Command("bash", "-n", sbatch).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

// The script runs launch, forwards signals, and requeues the job if launch's exit status says that it can continue.
func TestSbatchRuns(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"shardbook": "trap 'echo ended >>said; exit 75' TERM\necho \"shardbook $*\" >>said\nwhile [ $LASTS = long ]; " +
			"do kill -USR1 $PPID; sleep 0.05; done\nexit $STATUS\n",
		"scontrol": "echo \"scontrol $*\" >>said\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs(sbatch)
	if err != nil {
		t.Fatal(err)
	}
	const began, requeued = "shardbook launch --min-hosts 2 --grace 60s --checkpoint /shared/my run -- --batch 24\n",
		"scontrol requeue 42\n"
	for _, test := range []struct {
		lasts, before string
		status        int
		said          string
	}{
		{"short", "0", 0, began},
		{"short", "0", 1, began},
		{"short", "0", 75, began + requeued},
		{"short", "20", 75, began},
		{"long", "0", 75, began + "ended\n" + requeued},
	} {
		cmd := exec.CommandContext(t.Context(), "bash", script, "--batch", "24")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CHECKPOINT=/shared/my run",
			"SLURM_JOB_ID=42", "LASTS="+test.lasts, "SLURM_RESTART_COUNT="+test.before,
			fmt.Sprint("STATUS=", test.status))
		output, _ := cmd.CombinedOutput()
		said, err := os.ReadFile(filepath.Join(dir, "said"))
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		if cmd.ProcessState.ExitCode() != test.status || string(said) != test.said {
			t.Errorf("%s, status %d: status %d, said %q, want %q: %s", test.lasts, test.status,
				cmd.ProcessState.ExitCode(), said, test.said, output)
		}
		if err := os.Remove(filepath.Join(dir, "said")); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", script)
	cmd.Env = append(os.Environ(), "CHECKPOINT=")
	if output, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(output), "CHECKPOINT") {
		t.Errorf("%v: %s, want an error about CHECKPOINT", err, output)
	}
}
