// Package cache installs parts of shardbook for a user. Each part has a folder that is either complete or not used.
package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// EnvDir names the environment variable that sets the cache folder.
const EnvDir = "SHARDBOOK_CACHE"

// Dir returns the absolute path of the cache folder: explicit if it is not empty, else $SHARDBOOK_CACHE, else
// "shardbook" in the user's own cache folder ($XDG_CACHE_HOME or ~/.cache on Linux). The folder need not exist yet.
func Dir(explicit string) (string, error) {
	dir := explicit
	if dir == "" {
		dir = os.Getenv(EnvDir)
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache folder: %w; set %s to a folder that may be written", err, EnvDir)
		}
		dir = filepath.Join(base, "shardbook")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder %q: %w", dir, err)
	}
	if info, err := os.Stat(abs); err == nil && !info.IsDir() {
		return "", fmt.Errorf("cache folder %q is a file; set %s to a folder", abs, EnvDir)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cache folder: %w; set %s to a folder that may be read", err, EnvDir)
	}
	return abs, nil
}

// Usable returns an error that says what to do if need bytes cannot be written to dir. It creates dir if needed.
func Usable(dir string, need int64) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(dir, ".writable-*"); err == nil {
			probe.Close()
			os.Remove(probe.Name())
			err = checkSpace(dir, need)
		}
	}
	if err != nil {
		return fmt.Errorf("cache folder %s: %w; %s", dir, err, remedy(err))
	}
	return nil
}
