package house

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is a command line in a document.
type command struct {
	at, text string
	prints   []string // lines of the output block below it
}

// checks says how to check each kind of command. The first match counts.
var checks = []struct {
	kind  string // a regular expression for the beginning of the command
	check func(*trial, command)
}{
	// Commands that need no device are run unchanged.
	{`shardbook (schedule|estimate) `, func(tr *trial, c command) { tr.run(c, "") }},

	// Training is run with a small model and few steps; later flags win. Tests of cmd/shardbook check the output,
	// resumed runs and the reference run, which takes longer.
	{`shardbook train .*--(resume|reference|checkpoint|compile-for)`, (*trial).flags},
	{`shardbook train `, func(tr *trial, c command) { tr.run(c, small) }},

	// These run for long, or need the set-up or several hosts: tests of cmd/shardbook, kernel and notebooks run them.
	// Only their flags are checked here.
	{`shardbook (lab|notebooks|setup|doctor|exec|launch)( |$)`, (*trial).flags},
	{`mpirun (-n \d+ |--host \S+ )+shardbook train `, (*trial).flags},
	{`srun --mpi=pmix shardbook train `, (*trial).flags},

	// Benchmarks take minutes, and have their own tests.
	{`bench$`, func(tr *trial, c command) { tr.run(c, "") }},
	{`bench `, (*trial).flags},

	{`go test `, (*trial).tests},
	{`go build (-tags mpi )?(-o \S+ )?\./`, func(tr *trial, c command) { tr.packages(c) }},
	{`go get `, (*trial).module},
	{`git clone `, (*trial).clone},

	// Tests of docker build the image and check the manifests. Only files, build arguments and ports are checked here.
	{`(docker|kubectl|sbatch) `, (*trial).files},

	// System packages are installed by hand; tests install Open MPI by the same line.
	{`apt-get install `, (*trial).debian},
	{`(mkdir -p|echo|python3 -m tarfile -e) `, func(*trial, command) {}},
	{`sh gpu/run\.sh `, (*trial).packed},
	{`export [A-Z_]+=`, (*trial).setting},

	// NVIDIA's profilers are said to be untried.
	{`(nsys|ncu) `, func(*trial, command) {}},

	// a badge to copy
	{`\[!\[`, (*trial).badge},
}

const small = " --steps 2 --layers 2 --d 16 --heads 2 --seq 8 --batch 8 --text reference"

// TestCommands runs or checks every command in the documents.
func TestCommands(t *testing.T) {
	trial := newTrial(t)
	done := map[string]bool{}
	for _, d := range documents(t) {
		t.Run(d.name, func(t *testing.T) {
			trial.t = t
			for _, c := range commands(t, d) {
				c.text = trial.plain(c.text)
				if !done[c.text] {
					trial.check(c)
				}
				done[c.text] = true
			}
			for _, c := range mentions(d) {
				trial.mention(c)
			}
		})
	}
	t.Run("help", func(t *testing.T) {
		trial.t = t
		for _, name := range trial.commands("bench") {
			if !strings.Contains(read(t, "bench/README.md"), "\n    go run ./bench "+name+" ") {
				t.Errorf("bench/README.md has no line for %s", name)
			}
		}
		for _, name := range trial.commands("shardbook") {
			for _, c := range trial.examples("shardbook " + name) {
				trial.mention(c)
			}
		}
	})
}

// check checks a command by the first match in checks.
func (tr *trial) check(c command) {
	for _, one := range checks {
		if regexp.MustCompile("^" + one.kind).MatchString(c.text) {
			one.check(tr, c)
			return
		}
	}
	tr.t.Errorf("%s: nothing says how to check %q: add a line to checks", c.at, c.text)
}

// mentions are the texts in backticks of a document.
func mentions(d document) []command {
	var all []command
	_, rest := d.blocks()
	for _, code := range inCode.FindAllString(strings.Join(rest, "\n"), -1) {
		all = append(all, command{at: d.name, text: strings.Trim(code, "`")})
	}
	return all
}

// shells are the languages of blocks with commands.
var shells = []string{"sh", "bash", indented}

// commands are the commands of a document's blocks, with continued lines joined and comments removed.
func commands(t *testing.T, d document) []command {
	t.Helper()
	var all []command
	code, _ := d.blocks()
	for i, b := range code {
		switch b.language {
		case "sh", "bash":
		case indented:
			if filepath.Ext(d.name) != ".md" {
				continue // in a notebook, a formula
			}
		case "text":
			if i > 0 && len(all) > 0 && slices.Contains(shells, code[i-1].language) {
				all[len(all)-1].prints = b.lines
			}
			continue
		case "":
			t.Errorf("%s:%d: the block does not say what it is: begin it with ```sh or ```text", d.name, b.line)
			continue
		default:
			continue
		}
		text := strings.ReplaceAll(strings.Join(b.lines, "\n"), "\\\n", "")
		for line := range strings.SplitSeq(text, "\n") {
			line, _, _ = strings.Cut(line, " # ")
			if line = strings.Join(strings.Fields(line), " "); line != "" {
				all = append(all, command{at: fmt.Sprintf("%s:%d", d.name, b.line), text: line})
			}
		}
	}
	return all
}
