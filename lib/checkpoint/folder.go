package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func folderName(step int) string { return fmt.Sprintf("step-%08d", step) }

// stepOf returns the step in the name of a checkpoint's folder, and whether it is such a name.
func stepOf(name string) (int, bool) {
	digits, _ := strings.CutPrefix(name, "step-")
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && name == folderName(step)
}

// Latest returns the path of the checkpoint with the highest step in the folder dir. It ignores folders without a
// manifest, which are incomplete. If there is no checkpoint, or no such folder, the error is [fs.ErrNotExist].
//
// It verifies the checkpoint as [Open] does and returns its error: silently using an older one would lose all steps
// since. Move a damaged checkpoint away to use the one before it.
func Latest(dir string) (path string, err error) {
	// While others save and remove checkpoints, the newest of a list may be gone before it is opened, and there may
	// seem to be none between two. So an error must be seen twice in a row, and an empty folder four times, with time
	// for a writer in between.
	var before []int
	for alike := 1; ; alike++ {
		steps, err := list(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("checkpoint: %w", err)
		}
		if len(steps) == 0 {
			err = fmt.Errorf("checkpoint: %s has no checkpoint: %w", dir, fs.ErrNotExist)
		} else {
			path = filepath.Join(dir, folderName(steps[len(steps)-1]))
			if _, err = Open(path); err == nil {
				return path, nil
			}
			err = fmt.Errorf("%w; this is the latest checkpoint", err)
		}
		if alike > 1 && !slices.Equal(steps, before) {
			alike = 1
		}
		if alike == 4 || alike == 2 && len(steps) > 0 {
			return "", err
		}
		if before = steps; len(steps) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// list returns the steps of the checkpoints in the folder, ascending.
func list(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	var steps []int
	for _, entry := range entries {
		if step, ok := stepOf(entry.Name()); ok {
			_, err := os.Lstat(filepath.Join(dir, entry.Name(), manifestName))
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) { // unreadable ones count
				steps = append(steps, step)
			}
		}
	}
	slices.Sort(steps)
	return steps, err
}

// removeOld removes all but the newest keep of the complete checkpoints up to the step, or none if keep is 0.
func removeOld(dir string, step, keep int) error {
	if keep == 0 {
		return nil
	}
	steps, err := list(dir)
	if err != nil {
		return err
	}
	kept := 0
	for _, s := range slices.Backward(steps) {
		path := filepath.Join(dir, folderName(s))
		if s > step {
			continue
		}
		if _, err := Open(path); err != nil {
			continue // a damaged one does not count, and somebody may want to rescue it
		}
		if kept++; kept <= keep {
			continue
		}
		// Rename it first, so that no partial checkpoint remains if this is interrupted.
		aside := draftPath(path)
		if err := os.Rename(path, aside); errors.Is(err, fs.ErrNotExist) {
			continue // another writer was faster
		} else if err != nil {
			return err
		}
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
	}
	return nil
}

// Only the owner may write to folders and files, whatever the umask: whoever can write a checkpoint can forge it,
// checksums included. To let a group write, its owner changes the folder's mode (chmod g+w).
const folderMode, fileMode = 0o755, 0o644

// makeFolder creates a folder and its parents, and syncs their names to disk.
func makeFolder(dir string) error {
	err := os.Mkdir(dir, folderMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeFolder(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, folderMode)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(dir))
}

// syncFolder syncs the names in a folder to disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // some network file systems sync only files
		return err
	}
	return nil
}
