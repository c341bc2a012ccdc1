package house

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is a line that a document tells people to type.
type command struct {
	at, text string
	prints   []string // lines of the block of text below it, which stand in what it prints
}

// ways says for each kind of command how it is checked. The first that matches counts.
var ways = []struct {
	kind  string // how the command begins: a regular expression
	check func(*trial, command)
}{
	// What needs no device is run as it is.
	{`shardbook (schedule|estimate) `, func(tr *trial, c command) { tr.run(c, "") }},

	// Training is run with a small model and few steps: later flags win. The figures that it gives are those of tests of
	// cmd/shardbook. A run that is resumed, and the reference, which takes longer, are those of tests there.
	{`shardbook train .*--(resume|reference|checkpoint)`, (*trial).flags},
	{`shardbook train `, func(tr *trial, c command) { tr.run(c, small) }},

	// These run for as long as they like, need the set-up, or several hosts: tests of cmd/shardbook, kernel and notebooks run
	// them. Here their flags are looked up.
	{`shardbook (lab|notebooks|setup|doctor|exec|launch)( |$)`, (*trial).flags},
	{`mpirun (-n \d+ |--host \S+ )+shardbook train `, (*trial).flags},
	{`srun --mpi=pmix shardbook train `, (*trial).flags},

	// Benchmarks take minutes, and have tests with small sizes.
	{`bench$`, func(tr *trial, c command) { tr.run(c, "") }},
	{`bench `, (*trial).flags},

	{`go test `, (*trial).tests},
	{`go build (-tags mpi )?(-o \S+ )?\./`, func(tr *trial, c command) { tr.packages(c) }},
	{`go get `, (*trial).module},
	{`git clone `, (*trial).clone},

	// Files, build arguments and ports that these name are looked up. Tests of docker build the image and check the manifests.
	{`(docker|kubectl|sbatch) `, (*trial).files},

	// What is installed for the system, or for CUDA, is installed by hand. (Tests install Open MPI by the same line.)
	{`apt-get install `, (*trial).debian},
	{`(python3 -m venv|cuda/bin/pip install|mkdir -p|echo) `, func(*trial, command) {}},
	{`export [A-Z_]+=`, (*trial).setting},

	// A badge for others to copy.
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

// check checks a command in the first way that there is for it.
func (tr *trial) check(c command) {
	for _, way := range ways {
		if regexp.MustCompile("^" + way.kind).MatchString(c.text) {
			way.check(tr, c)
			return
		}
	}
	tr.t.Errorf("%s: nothing says how to check %q: add a line to ways", c.at, c.text)
}

// mentions are commands and flags that stand in a document's text.
func mentions(d document) []command {
	var all []command
	_, rest := d.blocks()
	for _, code := range inCode.FindAllString(strings.Join(rest, "\n"), -1) {
		all = append(all, command{at: d.name, text: strings.Trim(code, "`")})
	}
	return all
}

// shells are the languages of blocks that have commands.
var shells = []string{"sh", "bash", indented}

// commands are those of a document's blocks, with lines that go on joined and comments taken away.
func commands(t *testing.T, d document) []command {
	t.Helper()
	var all []command
	code, _ := d.blocks()
	for i, b := range code {
		switch b.language {
		case "sh", "bash":
		case indented:
			if filepath.Ext(d.name) != ".md" {
				continue // a notebook has formulas there
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
