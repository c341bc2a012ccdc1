package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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

// busyLoad is the load average from which on the heading says that the machine was busy.
const busyLoad = 0.5

// heading says on what and with what was measured.
func (o outcome) heading() string {
	text := fmt.Sprintf("%s, %s, load average %.1f before the run", o.Machine, o.Date.Format(time.DateOnly), o.Load1)
	if o.Load1 > busyLoad && timed(o.Records) {
		text += ": the machine was busy with other things"
	}
	return text + ".\n" + sidesText(o.Versions)
}

// fileName is that of the outcomes of a benchmark on one kind of machine: a later run replaces it.
func (o outcome) fileName() string {
	if o.Bench == gpuName && o.Machine.GPU != "" {
		o.Machine.Processor, _, _ = strings.Cut(o.Machine.GPU, ",")
	}
	return o.Bench + "-" + o.Machine.fileName() + ".json"
}

func (o outcome) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetIndent("", " ")
	if err := out.Encode(o); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}

// commandLine is the command as it can be given on another machine.
func commandLine(cmd *cobra.Command) string {
	words := []string{"go run ./bench", cmd.Name()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := strings.Trim(f.Value.String(), "[]")
		switch {
		case f.Name == "python", f.Name == "out":
		case f.Value.Type() == "bool" && value == "true":
			words = append(words, "--"+f.Name)
		default:
			words = append(words, "--"+f.Name+"="+value)
		}
	})
	return strings.Join(words, " ")
}

// Lines of the document between which the tables are.
const (
	tablesBegin = "<!-- Made from bench/results by \"go run ./bench tables\": do not edit. -->\n"
	tablesEnd   = "<!-- End of the tables. -->\n"
)

func tablesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tables",
		Short: "Make the tables of bench/README.md from bench/results",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			const document = "bench/README.md"
			text, err := os.ReadFile(document)
			if err != nil {
				return fmt.Errorf("run it in the repository's folder: %w", err)
			}
			renewed, err := withTables(string(text), "bench/results", benchmarks)
			if err != nil {
				return err
			}
			return os.WriteFile(document, []byte(renewed), 0o644)
		},
	}
}

// withTables is a document with its tables renewed from the outcomes in a folder.
func withTables(document, dir string, benchmarks []func() *benchmark) (string, error) {
	before, rest, found := strings.Cut(document, tablesBegin)
	_, after, closed := strings.Cut(rest, tablesEnd)
	if !found || !closed {
		return "", fmt.Errorf("the document has no lines %q and %q", tablesBegin, tablesEnd)
	}
	var text strings.Builder
	var missing []string
	for _, fresh := range benchmarks {
		b := fresh()
		paths, err := filepath.Glob(filepath.Join(dir, b.name+"-*-cores.json"))
		if err != nil {
			return "", err
		}
		title := fmt.Sprintf("\n### %s\n\n%s.\n", b.name, strings.ToUpper(b.about[:1])+b.about[1:])
		for _, path := range paths {
			saved, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			var o outcome
			if err := json.Unmarshal(saved, &o); err != nil {
				return "", fmt.Errorf("%s: %w", path, err)
			}
			if o.Bench != b.name { // zero-memory's are not zero's
				continue
			}
			header, rows := cells(o.Records, false)
			fmt.Fprintf(&text, "%s\n`%s`: %s\n\n%s.\n\n", title, o.Command, o.heading(), tableTitle)
			rule := strings.Fields(strings.Repeat("--- ", len(header)))
			for _, row := range append([][]string{header, rule}, rows...) {
				fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
			}
			title = ""
		}
		if title != "" {
			missing = append(missing, "`"+b.name+"`")
		}
	}
	if missing != nil {
		fmt.Fprintf(&text, "\nNo results are saved yet of %s.\n", strings.Join(missing, ", "))
	}
	return before + tablesBegin + text.String() + "\n" + tablesEnd + after, nil
}
