package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// resultsName is the folder with saved outcomes, below this package's.
const resultsName = "results"

// outcome is all that a run measured, on what and with what. It is what --save writes.
type outcome struct {
	Bench    string              `json:"bench"`
	Command  string              `json:"command"`
	Date     time.Time           `json:"date"`  // of its beginning
	Load1    float64             `json:"load1"` // the machine's load average before the first process was started
	Machine  machine             `json:"machine"`
	Versions map[string]versions `json:"versions"` // by implementation
	Records  []record            `json:"records"`
}

// busyLoad is the load average from which on a machine is said to be busy with other things.
const busyLoad = 0.5

// heading says on what and with what was measured. Memory is planned, and has nothing to do with load.
func (o outcome) heading() string {
	text := fmt.Sprintf("%s, %s, load average %.1f before the run", o.Machine, o.Date.Format(time.DateOnly), o.Load1)
	if o.Load1 > busyLoad && timed(o.Records) {
		text += ": the machine was busy with other things"
	}
	return text + ".\n" + sidesText(o.Versions)
}

// save writes the outcome into a folder. A later run of the same benchmark on the same kind of machine takes its place.
func (o outcome) save(dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetIndent("", " ")
	if err := out.Encode(o); err != nil {
		return "", err
	}
	path = filepath.Join(dir, o.fileName())
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}

func (o outcome) fileName() string { return o.Bench + "-" + o.Machine.fileName() + ".json" }

// loadOutcomes reads the saved outcomes of a benchmark.
func loadOutcomes(dir, bench string) (all []outcome, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var o outcome
		if err := json.Unmarshal(text, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if o.Bench != bench {
			continue
		}
		if err := o.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if want := o.fileName(); filepath.Base(path) != want {
			return nil, fmt.Errorf("%s: the results in it belong into %s", path, want)
		}
		all = append(all, o)
	}
	return all, err
}

// check makes the records anew from their samples: no ratio may be another one.
func (o outcome) check() error {
	for i := 0; i < len(o.Records); {
		var results []result
		var of []record
		for _, r := range o.Records[i:] {
			if r.Case != o.Records[i].Case {
				break
			}
			of = append(of, r)
			im := implementation{name: r.Impl, role: r.Role, class: r.Class, over: r.Over}
			results = append(results, result{im, r.Samples, r.footprint})
		}
		for k, r := range compare(o.Bench, testCase{name: of[0].Case}, results) {
			r.details, r.Load1 = of[k].details, of[k].Load1
			if !reflect.DeepEqual(r, of[k]) {
				return fmt.Errorf("%s, %s: the record is %+v, its samples give %+v", r.Case, r.Impl, of[k], r)
			}
		}
		i += len(of)
	}
	return nil
}

// commandLine is what a command was given, but for where things are on this machine.
func commandLine(cmd *cobra.Command) string {
	words := []string{"go run ./bench", cmd.Name()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := strings.Trim(f.Value.String(), "[]")
		switch {
		case f.Name == "python" || f.Name == "out":
		case f.Value.Type() == "bool" && value == "true":
			words = append(words, "--"+f.Name)
		default:
			words = append(words, "--"+f.Name+"="+value)
		}
	})
	return strings.Join(words, " ")
}

// benchFolder is where this package's source is.
func benchFolder(ctx context.Context) (string, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/shardbook/shardbook/bench").Output()
	if err != nil {
		return "", fmt.Errorf("go list finds no source of this program: run it in a clone of the repository (%w)", err)
	}
	return strings.TrimSpace(string(dir)), nil
}

func resultsFolder(ctx context.Context) (string, error) {
	dir, err := benchFolder(ctx)
	return filepath.Join(dir, resultsName), err
}
