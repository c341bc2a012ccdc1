//go:build !resident

package notebook

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/janpfeifer/gonb/gonbui/protocol"
)

// openStore returns the kernel's store in a notebook and the process's memory elsewhere.
//
// A notebook's values are in a folder inside the kernel's temporary folder. Each kernel process creates that folder
// under a new random name, so the values of an earlier kernel cannot be seen even if it was killed. The go tool ignores
// names that begin with a dot.
func openStore() (store, error) {
	if os.Getenv(protocol.GONB_PIPE_ENV) == "" {
		return &processStore, nil
	}
	folder := os.Getenv(protocol.GONB_TMP_DIR_ENV)
	if folder == "" {
		return nil, fmt.Errorf("this is a notebook cell, but %s is not set", protocol.GONB_TMP_DIR_ENV)
	}
	return folderStore(filepath.Join(folder, ".kept")), nil
}

// folderStore has one file of a folder per value. The file's name is the value's name in hexadecimal, which is valid
// for all names, also where file names ignore case.
type folderStore string

const keptSuffix = ".kept"

func (s folderStore) path(name string) string {
	return filepath.Join(string(s), hex.EncodeToString([]byte(name))+keptSuffix)
}

func (s folderStore) put(name string, v stored) error {
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(s), "unfinished-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // where it has not been renamed
	_, err = f.Write(v.data)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.path(name))
}

func (s folderStore) get(name string) (v stored, err error) {
	v.data, err = os.ReadFile(s.path(name))
	return v, err
}

func (s folderStore) names() (names []string, err error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		encoded, ok := strings.CutSuffix(e.Name(), keptSuffix)
		if name, err := hex.DecodeString(encoded); ok && err == nil {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names, nil
}
