package flags_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/must"
)

// values are what the flags of a test set.
type values struct {
	layers, pipe, data int
	norm, cut          string
	tied               bool
	rate               float64
	grace              time.Duration
	memory             flags.Bytes
}

func newFlags(v *values) *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.IntVar(&v.layers, "layers", 4, "blocks")
	v.norm = "layernorm"
	flags.Choice(f, &v.norm, "norm", []string{"layernorm", "rmsnorm"}, "normalization")
	f.BoolVar(&v.tied, "tied", false, "tied")
	f.Float64Var(&v.rate, "lr-rate", 1e-3, "rate")
	flags.Least(f, "1", "layers")
	flags.Group(f, "model")
	f.IntVar(&v.pipe, "pipe", 0, "stages")
	f.IntVar(&v.data, "data", 1, "devices")
	f.StringVar(&v.cut, "cut", "", "blocks of stages")
	f.Var(&v.memory, "memory", "memory")
	flags.Needs(f, "pipe", "cut")
	flags.Group(f, "layout")
	flags.Pairs(f, "layout", "several", "layout")
	f.DurationVar(&v.grace, "grace", time.Second, "time")
	f.String("config", "", "file")
	f.Bool("print-config", false, "print")
	flags.Settings(f, "config")
	flags.NotInFiles(f, "print-config")
	flags.Least(f, "0s", "grace")
	flags.Group(f, "run")
	return f
}

// parse parses a command line, where FILE is a file of that name and text.
func parse(t *testing.T, line, name, text string) (*pflag.FlagSet, values, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	var v values
	f := newFlags(&v)
	err := f.Parse(strings.Fields(strings.ReplaceAll(line, "FILE", path)))
	if err == nil {
		err = flags.Settle(f)
	}
	return f, v, err
}

// A file sets what no flag sets, in all of its forms, and what is printed is such a file.
func TestSettings(t *testing.T) {
	want := values{layers: 6, pipe: 2, data: 3, norm: "rmsnorm", cut: "3,1", tied: true, rate: 2e-4,
		grace: 90 * time.Second, memory: 80e9}
	yaml := "layers: 9 # or more\nnorm: RMSNorm\ntied: true\nlr_rate: 2.0e-4\npipe: 2\ndata: 3\ncut: '3,1'\ngrace: " +
		"90s\nmemory: 80GB\n"
	toml := "layers = 9\nnorm = \"rmsnorm\"\ntied = true\nlr-rate = 2e-4\nlayout = \"pipe=2,data=3,cut=3:1\"\ngrace " +
		"= \"1m30s\"\nmemory = 80_000_000_000\n"
	json := `{"layers": 9, "norm": "rmsnorm", "tied": true, "lr-rate": 0.0002, ` +
		`"layout": "pipe=2,cut=3:1,data=3", "grace": "90s", "memory": 8e10}`
	for name, text := range map[string]string{"run.yaml": yaml, "run.toml": toml, "run.json": json} {
		f, got, err := parse(t, "--config FILE --layers 6", name, text)
		if err != nil || got != want {
			t.Fatalf("%s: %+v, error %v, want %+v", name, got, err, want)
		}
		var printed strings.Builder
		must.Do(t, flags.Print(&printed, f))
		for _, heading := range []string{"# model\nlayers: 6\n", "# layout\npipe: 2\n", "# run\ngrace: 1m30s\n"} {
			if !strings.Contains(printed.String(), heading) {
				t.Errorf("no %q in\n%s", heading, printed.String())
			}
		}
		if _, again, err := parse(t, "--config FILE", "printed.yml", printed.String()); err != nil || again != want {
			t.Errorf("%s was printed as\n%swhich is %+v, error %v", name, printed.String(), again, err)
		}
	}
	// A default in a file is as if it were not there.
	if f, _, err := parse(t, "--config FILE", "run.yaml", "layers: 4\npipe: 2\n"); err != nil || f.Changed("layers") ||
		!f.Changed("pipe") {
		t.Errorf("layers changed: %v, pipe changed: %v, error %v", f.Changed("layers"), f.Changed("pipe"), err)
	}
	if _, v, err := parse(t, "--config FILE", "run.yaml", ""); err != nil || v.layers != 4 {
		t.Errorf("an empty file: %+v, error %v", v, err)
	}
}

// What is wrong in a file is an error that says where, and what is wanted.
func TestSettingsRefused(t *testing.T) {
	for _, c := range []struct{ line, name, text, want string }{
		{"--config FILE", "run.yaml", "tied: true\nlayer: 4", `run.yaml:2: "layer" is not a setting`},
		{"--config FILE", "run.toml", "layer = 4", `run.toml: "layer" is not a setting`},
		{"--config FILE", "run.yaml", "layers: four", `run.yaml:1: layers is "four": want a whole number`},
		{"--config FILE", "run.yaml", "layers: 4.5", `layers is "4.5": want a whole number`},
		{"--config FILE", "run.toml", "layers = true", `layers is "true": want a whole number`},
		{"--config FILE", "run.yaml", "\n\ntied: maybe", `run.yaml:3: tied is "maybe": want true or false`},
		{"--config FILE", "run.yaml", "lr-rate: fast", "want a number"},
		{"--config FILE", "run.yaml", "grace: 5", "want a duration, as 30s"},
		{"--config FILE", "run.yaml", "norm: batch", `norm is "batch": want one of layernorm, rmsnorm`},
		{"--config FILE", "run.yaml", "memory: much", "want bytes, at least 1"},
		{"--config FILE", "run.yaml", "layers: 0", "run.yaml:1: --layers=0: want at least 1"},
		{"--config FILE", "run.yaml", "layers: [1]", "layers has no single value"},
		{"--config FILE", "run.toml", "[layers]\nx = 1", "layers has no single value"},
		{"--config FILE", "run.yaml", "layers:", "layers has no single value"},
		{"--config FILE", "run.yaml", "- layers", "run.yaml:1: want a mapping"},
		{"--config FILE", "run.yaml", "layers: 5\nlayers: 6", "run.yaml:2: layers is given twice"},
		{"--config FILE", "run.yaml", "pipe: 2\nlayout: data=2,pipe=3", "run.yaml:2: pipe is given twice"},
		{"--config FILE", "run.yaml", "layout: pipes=2",
			`run.yaml:1: layout: "pipes" is an unknown key: want one of pipe, data, cut`},
		{"--config FILE", "run.yaml", "a: 1\n--- \nb: 2", "more than one document"},
		{"--config FILE", "run.toml", "pipe = 2\nlayers = = 2", "run.toml:2: "},
		{"--config FILE", "run.yaml", "pipe: {", "run.yaml: yaml: line 1"},
		{"--config FILE", "run.yaml", "config: other.yaml", `"config" is not a setting`},
		{"--config FILE", "run.yaml", "print-config: true", `"print-config" is not a setting`},
		{"--config none.yaml", "run.yaml", "", "--config: open none.yaml"},
		{"--config=", "run.yaml", "", "--config is empty"},
		{"--layout pipe=2 --pipe 2", "", "", "--layout has pipe=2, and --pipe is given as well"},
		{"--layout pipe=2,pipe=3", "", "", "--layout: pipe is given twice"},
		{"--layout layers=2", "", "", `--layout: "layers" is an unknown key: want one of pipe, data, cut, memory`},
		{"--layout pipe=two", "", "", `--layout: pipe is "two": want a whole number`},
		{"--layout pipe", "", "", `--layout: pipe is "": want a whole number`},
		{"--grace=-1s", "", "", "--grace=-1s: want at least 0s"},
	} {
		if c.name == "" {
			c.name = "run.yaml"
		}
		f, v, err := parse(t, c.line, c.name, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s %q: %+v, error %v, want %q", c.line, c.name, c.text, v, flags.Located(f, err), c.want)
		}
	}
}

// An error that names a flag says where the flag was set, if that was in a file.
func TestLocated(t *testing.T) {
	f, _, err := parse(t, "--config FILE --pipe 3", "run.yaml", "data: 2\npipe: 2\ncut: 1,1\n")
	must.Do(t, err)
	if err := flags.Check(f); err != nil {
		t.Error(err)
	}
	if got := flags.Located(f, nil); got != nil {
		t.Error(got)
	}
	for text, want := range map[string]bool{"--cut=1,1: no": true, "--pipe=3: no": false, "no": false,
		"--unknown: no, --data": true} {
		err := flags.Located(f, errors.New(text))
		if strings.Contains(err.Error(), "run.yaml:") != want || !strings.HasSuffix(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	f, _, err = parse(t, "--cut 3,1", "run.yaml", "")
	must.Do(t, err)
	if err := flags.Check(f); err == nil || err.Error() != "--cut=3,1 changes nothing without --pipe: leave it out, "+
		"or set --pipe" {
		t.Errorf("a flag without the one that it needs: %v", err)
	}
}

// Help has a heading for each group, with flags in the order in which they were added.
func TestHelp(t *testing.T) {
	cmd := &cobra.Command{Use: "run", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().AddFlagSet(newFlags(new(values)))
	cmd.Flags().SortFlags = false
	flags.Help(cmd)
	const want = `
Model flags:
      --layers int      blocks (default 4)
      --norm string     normalization (default "layernorm")
      --tied            tied
      --lr-rate float   rate (default 0.001)

Layout flags:
      --pipe int       stages
      --data int       devices (default 1)
      --cut string     blocks of stages
      --memory bytes   memory
`
	if got := cmd.UsageString(); !strings.Contains(got, want) || !strings.Contains(got, "\n\nRun flags:\n") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
