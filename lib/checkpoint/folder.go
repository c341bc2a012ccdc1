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

// stepOf returns the step that a checkpoint's folder is named after, and whether it is named so.
func stepOf(name string) (int, bool) {
	digits, _ := strings.CutPrefix(name, "step-")
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && name == folderName(step)
}

// Latest returns the path of the checkpoint of the highest step in the folder dir. It does not see folders with no
// manifest, which are being written, being copied, or cut off. If there is no checkpoint, or no such folder, the error
// is [fs.ErrNotExist].
//
// The checkpoint is verified as by [Open], and an error says what is wrong with it: to go on from an older one in
// silence would lose all steps since. Move the damaged one away to use the one before it.
func Latest(dir string) (path string, err error) {
	// While writers save and remove, the newest of a list may be gone before it is opened, and none may seem to be
	// there between two: that something is wrong is believed when the same is found twice in a row, and that there is
	// none when nothing is found four times, a writer's time apart.
	var before []int
	for alike := 1; ; alike++ {
		steps, err := list(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("checkpoint: %w", err)
		}
		if len(steps) == 0 {
			err = fmt.Errorf("checkpoint: there is none in %s: %w", dir, fs.ErrNotExist)
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
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) { // one that may not be read counts
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
			continue // a damaged one does not count, and may be all that somebody can save
		}
		if kept++; kept <= keep {
			continue
		}
		// It loses its name first, so that it is not there in part if this is cut off.
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

// Only their owner writes to folders and files, whatever the umask: who can write a checkpoint can make it say
// anything, checksums included. A group that is to write gets the folder's mode from its owner (chmod g+w).
const folderMode, fileMode = 0o755, 0o644

// makeFolder makes a folder and those above it, and makes sure that their names reach the disk.
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

// syncFolder makes sure that the names in a folder have reached the disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // some network file systems sync files only
		return err
	}
	return nil
}
