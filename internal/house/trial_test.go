package house

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
)

// trial runs and checks commands.
type trial struct {
	t     *testing.T
	dir   string              // the working folder, with the built programs
	known map[string][]string // flags by command
	all   []string            // flags of all commands
}

func newTrial(t *testing.T) *trial {
	t.Helper()
	devicetest.CompileQuickly()
	tr := &trial{t: t, dir: t.TempDir(), known: map[string][]string{}}
	if output(t, "go", "build", "-o", tr.dir+string(filepath.Separator), "./cmd/shardbook", "./bench"); t.Failed() {
		t.FailNow()
	}
	return tr
}

var (
	settings = regexp.MustCompile(`^([A-Z_]+)=\S+ `)
	ours     = regexp.MustCompile(`go run \./cmd/shardbook\b|\./shardbook\b`)
)

// plain replaces programs by their built names and removes sudo and environment variables, which it checks.
func (tr *trial) plain(text string) string {
	text = strings.TrimPrefix(text, "sudo ")
	for {
		found := settings.FindStringSubmatch(text)
		if found == nil {
			break
		}
		tr.variable(found[1])
		text = text[len(found[0]):]
	}
	text = ours.ReplaceAllString(text, "shardbook")
	return strings.Replace(text, "go run ./bench", "bench", 1)
}

// run runs a command with more flags, and checks its output.
func (tr *trial) run(c command, more string) {
	ctx, cancel := context.WithTimeout(tr.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", c.text+more)
	cmd.Dir = tr.dir
	cmd.Env = append(os.Environ(), "PATH="+tr.dir+":"+os.Getenv("PATH"))
	printed, err := cmd.CombinedOutput()
	if err != nil || len(printed) == 0 {
		tr.t.Errorf("%s: %s%s: %v\n%s", c.at, c.text, more, err, printed)
	}
	for _, line := range c.prints {
		if line = strings.TrimSpace(line); line != "…" && !strings.Contains(string(printed), line) {
			tr.t.Errorf("%s: %s does not print %q, but\n%s", c.at, c.text, line, printed)
		}
	}
	for _, file := range regexp.MustCompile(`--trace (\S+)`).FindAllStringSubmatch(c.text, -1) {
		if err := os.Remove(filepath.Join(tr.dir, file[1])); err != nil { // fails if it was not written
			tr.t.Errorf("%s: %s: %v", c.at, c.text, err)
		}
	}
}

var (
	programs = regexp.MustCompile(`(?:^| )((?:shardbook|bench) [a-z-]+)`)
	flagName = regexp.MustCompile(`(?:^| )(--[a-z][a-z0-9-]*)`)
)

// flags checks that a command has its flags. Those after the -- of launch belong to train.
func (tr *trial) flags(c command) {
	program := programs.FindStringSubmatch(c.text)
	if program == nil {
		tr.t.Errorf("%s: %s names no command", c.at, c.text)
		return
	}
	_, own, _ := strings.Cut(c.text, program[1])
	own, after, _ := strings.Cut(own, " -- ")
	tr.have(c, program[1], own)
	tr.have(c, "shardbook train", after)
}

func (tr *trial) have(c command, program, text string) {
	for _, found := range flagName.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(tr.help(program), found[1]) {
			tr.t.Errorf("%s: %s: %s has no flag %s", c.at, c.text, program, found[1])
		}
	}
}

// help lists the flags in a command's help.
func (tr *trial) help(program string) []string {
	if tr.known[program] == nil {
		text := tr.helpText(program)
		for _, found := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z][a-z0-9-]*)`).FindAllStringSubmatch(text,
			-1) {
			tr.known[program] = append(tr.known[program], found[1])
		}
		if !strings.Contains(text, "Usage:\n  "+program) { // an unknown command prints its parent's help
			tr.t.Errorf("there is no command %s", program)
		}
	}
	return tr.known[program]
}

// examples are the example commands of a command's help.
func (tr *trial) examples(program string) []command {
	_, text, _ := strings.Cut(tr.helpText(program), "\nExamples:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	var all []command
	for line := range strings.Lines(text) {
		all = append(all, command{at: program + " --help", text: strings.TrimSpace(line)})
	}
	return all
}

func (tr *trial) helpText(program string) string {
	name, args, _ := strings.Cut(program, " ")
	return output(tr.t, filepath.Join(tr.dir, name), append(strings.Fields(args), "--help")...)
}

// mention checks a command or flag that a text mentions, without running it.
func (tr *trial) mention(c command) {
	c.text = tr.plain(c.text)
	switch name, _, _ := strings.Cut(c.text, " "); {
	case name == "docker" || name == "kubectl" || name == "sbatch":
		tr.files(c)
	case programs.MatchString(c.text):
		tr.flags(c)
	case strings.HasPrefix(c.text, "go test "):
		tr.tests(c)
	case flagName.FindString(c.text) == name:
		for _, found := range flagName.FindAllStringSubmatch(c.text, -1) {
			if !slices.Contains(tr.anyFlag(), found[1]) {
				tr.t.Errorf("%s: %s: no command has a flag %s", c.at, c.text, found[1])
			}
		}
	}
}

// anyFlag are the flags of all commands, and flags of other programs that the documents mention.
func (tr *trial) anyFlag() []string {
	if tr.all == nil {
		tr.all = []string{
			"--oversubscribe", "--enable-recovery", // mpirun
			"--network", // docker
		}
		for _, program := range []string{"shardbook", "bench"} {
			for _, name := range tr.commands(program) {
				tr.all = append(tr.all, tr.help(program+" "+name)...)
			}
		}
	}
	return tr.all
}

func (tr *trial) commands(program string) []string {
	_, text, _ := strings.Cut(tr.helpText(program), "Available Commands:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	var all []string
	for line := range strings.Lines(text) {
		if name := strings.Fields(line)[0]; name != "completion" && name != "help" {
			all = append(all, name)
		}
	}
	return all
}
