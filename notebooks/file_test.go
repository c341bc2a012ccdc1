package notebooks

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/kernel"
)

// cell is one cell of a notebook's file.
type cell struct {
	CellType string `json:"cell_type"`
	Count    int    `json:"execution_count"`
	Source   text
	Metadata struct{ Tags []string }
	Outputs  []output
}

// output is something that a cell has printed or shown.
type output struct {
	Type string `json:"output_type"`
	Name string
	Text text // what it printed
	Data struct {
		HTML  text `json:"text/html"`
		Plain text `json:"text/plain"`
	}
}

// text is a string that the file may hold as a list of lines.
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	var lines []string
	if err := json.Unmarshal(data, &lines); err == nil {
		*t = text(strings.Join(lines, ""))
		return nil
	}
	return json.Unmarshal(data, (*string)(t))
}

func read(t *testing.T, path string) []cell {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	var file struct{ Cells []cell }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return file.Cells
}

// withoutOutputs writes a copy of a notebook whose cells have not run.
func withoutOutputs(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must.Do(t, err)
	var file map[string]any
	must.Do(t, json.Unmarshal(data, &file))
	for _, c := range file["cells"].([]any) {
		if c := c.(map[string]any); c["cell_type"] == "code" {
			c["outputs"], c["execution_count"] = []any{}, nil
		}
	}
	if data, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	must.Do(t, os.WriteFile(to, data, 0o644))
}

// writeRun writes a notebook whose cells ran as the ninth of an earlier kernel. Run in order, they print "ran 1" to
// "ran 3".
func writeRun(t *testing.T, to string) {
	t.Helper()
	var cells []map[string]any
	for i := range 3 {
		cells = append(cells, map[string]any{
			"cell_type": "code", "id": fmt.Sprint("cell-", i), "metadata": map[string]any{}, "execution_count": 9,
			"source":  fmt.Sprintf("%%%%\nfmt.Println(\"ran\", %d)", i+1),
			"outputs": []any{map[string]any{"output_type": "stream", "name": "stdout", "text": "ran earlier\n"}},
		})
	}
	spec := map[string]any{"name": kernel.Name, "display_name": "Go (shardbook)", "language": "go"}
	data := must.Get(json.Marshal(map[string]any{
		"nbformat": 4, "nbformat_minor": 5, "cells": cells, "metadata": map[string]any{"kernelspec": spec},
	}))(t)
	must.Do(t, os.WriteFile(to, data, 0o644))
}
