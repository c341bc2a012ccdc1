package kernel

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FindNotebooks returns the paths of the named notebooks, in the given order, or of all notebooks in reading order if
// there are no names. A name may omit ".ipynb", or be only the leading number.
func (k *Kernel) FindNotebooks(names []string) ([]string, error) {
	entries, err := os.ReadDir(k.notebooks())
	if err != nil {
		return nil, fmt.Errorf("notebooks: %w", err)
	}
	var all []string
	for _, entry := range entries {
		if is, _ := filepath.Match("[0-9]*.ipynb", entry.Name()); is {
			all = append(all, filepath.Join(k.notebooks(), entry.Name()))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no notebooks in %s: is the clone complete?", k.notebooks())
	}
	if len(names) == 0 {
		return all, nil
	}
	var paths []string
	for _, name := range names {
		at := slices.IndexFunc(all, func(path string) bool {
			base := strings.TrimSuffix(filepath.Base(path), ".ipynb")
			number, _, _ := strings.Cut(base, "-")
			return strings.TrimSuffix(name, ".ipynb") == base || name == number
		})
		if at < 0 {
			known := make([]string, len(all))
			for i, path := range all {
				known[i] = strings.TrimSuffix(filepath.Base(path), ".ipynb")
			}
			return nil, fmt.Errorf("no notebook %q in %s; there are %q", name, k.notebooks(), known)
		}
		paths = append(paths, all[at])
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
