package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

// What was used last stays; the rest goes until there is room again.
func TestExecutablesWithinTheLimit(t *testing.T) {
	e := &Executables{Folder: filepath.Join(t.TempDir(), "executables"), Limit: 1000}
	now := time.Now()
	var paths []string
	for i := range 12 {
		path := filepath.Join(e.Folder, fmt.Sprint(i))
		e.write(path, make([]byte, 68)) // 100 bytes with the checksum
		used := now.Add(time.Duration(i-100) * time.Minute)
		must.Do(t, os.Chtimes(path, used, used))
		paths = append(paths, path)
	}
	if got := read(paths[0]); len(got) != 68 { // the oldest is the newest now
		t.Fatalf("%d bytes come back", len(got))
	}
	pruned.Delete(e.Folder) // as in another process
	e.write(filepath.Join(e.Folder, "new"), make([]byte, 68))
	var left []string
	entries := must.Get(os.ReadDir(e.Folder))(t)
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if want := []string{"0", "10", "11", "6", "7", "8", "9", "new"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}
