package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Lines of the document between which the tables are.
const (
	tablesBegin = "<!-- Made from bench/results by \"go run ./bench tables\": do not edit. -->\n"
	tablesEnd   = "<!-- End of the tables. -->\n"
)

func tablesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tables",
		Short: "Make the tables of bench/README.md from the saved results",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return renewTables(cmd.Context()) },
	}
}

func renewTables(ctx context.Context) error {
	dir, err := benchFolder(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	renewed, err := withTables(string(text), filepath.Join(dir, resultsName), benchmarks)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(renewed), 0o644)
}

// withTables is a document with its tables made anew from a folder of results.
func withTables(document, dir string, benchmarks []func() benchmark) (string, error) {
	before, rest, found := strings.Cut(document, tablesBegin)
	_, after, closed := strings.Cut(rest, tablesEnd)
	if !found || !closed {
		return "", fmt.Errorf("the document has no lines %q and %q", tablesBegin, tablesEnd)
	}
	var text strings.Builder
	var missing []string
	for _, fresh := range benchmarks {
		b := fresh()
		outcomes, err := loadOutcomes(dir, b.name())
		if err != nil {
			return "", err
		}
		if len(outcomes) == 0 {
			missing = append(missing, "`"+b.name()+"`")
			continue
		}
		fmt.Fprintf(&text, "\n### %s\n\n%s.\n", b.name(), capital(b.about()))
		for _, o := range outcomes {
			fmt.Fprintf(&text, "\n`%s`: %s\n", o.Command, o.heading())
			for _, t := range tablesOf(b, o.Records) {
				fmt.Fprintf(&text, "\n%s", t.markdown())
			}
		}
	}
	if missing != nil {
		fmt.Fprintf(&text, "\nNo results are saved yet of %s.\n", strings.Join(missing, ", "))
	}
	return before + tablesBegin + text.String() + "\n" + tablesEnd + after, nil
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// tablesOf are what a document says of a benchmark: ratios, and what may be said of memory; no times.
func tablesOf(b benchmark, records []record) []table {
	var all []table
	if t, ok := ratioTable(records); ok {
		all = append(all, t)
	}
	if b, ok := b.(interface{ tables([]record) []table }); ok {
		return append(all, b.tables(records)...)
	}
	for _, of := range []struct {
		title string
		cell  func(record) string
		roles []role
	}{
		{"Peers and variants: theirs over that of the best of ours, median (least) of the rounds.",
			ratioCell, []role{variant, peer}},
		{"Cost, which is the time over that of the system's own base: median of the rounds (of the least times).",
			costCell, []role{ours, variant, peer}},
		{"Temporary memory of the compiled program on a device, MiB.", temporaryCell, []role{ours, variant, peer}},
	} {
		some := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return of.cell(r) == "" })
		if t := pivot(of.title, some, of.cell, of.roles...); len(t.rows) > 0 {
			all = append(all, t.upright())
		}
	}
	return all
}

func costCell(r record) string {
	if r.Over == "" {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f)", r.Cost, r.MinCost)
}

// temporaryCell is of those whose memory is compared: see [record.compareMemory].
func temporaryCell(r record) string {
	if r.Over != "" || r.Temporary == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", mebibytes(r.Temporary))
}
