package main

import (
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
)

// TestRerun runs a notebook's cells twice in one kernel. The second cell of the second run is the fourth that runs.
func TestRerun(t *testing.T) {
	k := kerneltest.Ready(t)
	path := filepath.Join(t.TempDir(), "counted.ipynb")
	cells := []string{"!echo >>runs", "!echo >>runs; wc -l runs; [ $(wc -l <runs) != 4 ] || exit 3"}
	must.Do(t, writeNotebook(path, cells))
	_, _, err := rerun(t.Context(), k, path, 1)
	must.Refuse(t, "the second run", err, "counted.ipynb, cell 4")
	must.Do(t, writeNotebook(path, []string{"%%\nfmt.Println(1)", "%%\nfmt.Println(2)"}))
	first, second, err := rerun(t.Context(), k, path, 2)
	must.Do(t, err)
	if len(first) != 2 || len(second) != 2 || first.min() <= 0 || second.min() <= 0 {
		t.Errorf("the runs took %v and %v", first, second)
	}
}
