package notebooks

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// cell is one cell of a notebook's file.
type cell struct {
	CellType string `json:"cell_type"`
	Count    int    `json:"execution_count"`
	Source   text
	Outputs  []struct {
		Type string `json:"output_type"`
		Name string
		Data struct {
			HTML text `json:"text/html"`
		}
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
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, c := range file["cells"].([]any) {
		if c := c.(map[string]any); c["cell_type"] == "code" {
			c["outputs"], c["execution_count"] = []any{}, nil
		}
	}
	if data, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
