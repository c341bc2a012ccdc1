package kernel

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FindNotebooks returns the paths of the named notebooks, in the given order, or of all notebooks in reading order if
// there are no names. A name may omit ".ipynb", or be only the leading number.
func (k *Kernel) FindNotebooks(names []string) ([]string, error) {
	all, err := fs.Glob(os.DirFS(k.notebooks()), "[0-9]*.ipynb")
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("no notebooks in %s: is the clone complete?", k.notebooks())
	}
	for i, file := range all {
		all[i] = strings.TrimSuffix(file, ".ipynb")
	}
	if len(names) == 0 {
		names = all
	}
	var paths []string
	for _, name := range names {
		at := slices.IndexFunc(all, func(base string) bool {
			number, _, _ := strings.Cut(base, "-")
			return strings.TrimSuffix(name, ".ipynb") == base || name == number
		})
		if at < 0 {
			return nil, fmt.Errorf("no notebook %q in %s; there are %q", name, k.notebooks(), all)
		}
		paths = append(paths, filepath.Join(k.notebooks(), all[at]+".ipynb"))
	}
	return paths, nil
}

// Source returns the text of each code cell of a notebook.
func Source(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("notebook: %w", err)
	}
	var file struct {
		Cells []struct {
			CellType string `json:"cell_type"`
			Source   lines
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("notebook %s: %w", path, err)
	}
	var cells []string
	for _, cell := range file.Cells {
		if cell.CellType == "code" {
			cells = append(cells, string(cell.Source))
		}
	}
	return cells, nil
}

// lines is text that a notebook holds as one string or as a list of lines.
type lines string

// UnmarshalJSON reads both forms.
func (l *lines) UnmarshalJSON(text []byte) error {
	var list []string
	if err := json.Unmarshal(text, &list); err == nil {
		*l = lines(strings.Join(list, ""))
		return nil
	}
	return json.Unmarshal(text, (*string)(l))
}
