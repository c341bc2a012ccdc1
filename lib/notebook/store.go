package notebook

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/janpfeifer/gonb/gonbui/protocol"
)

// store holds encoded values by name.
type store interface {
	put(name string, value reflect.Value) error
	get(name string) (data []byte, found bool, err error)
	names() ([]string, error) // sorted
}

// keptFolder is where a notebook's values live, inside the kernel's temporary folder. That folder is made new for each
// kernel process, under a random name that must not exist yet, so the values of an earlier kernel cannot be seen even
// if that kernel was killed before it could remove them. The go tool ignores names that begin with a dot.
const keptFolder = ".kept"

// openStore returns the kernel's store in a notebook and the process's memory elsewhere.
func openStore() (store, error) {
	if os.Getenv(protocol.GONB_PIPE_ENV) == "" {
		return &processStore, nil
	}
	folder := os.Getenv(protocol.GONB_TMP_DIR_ENV)
	if folder == "" {
		return nil, fmt.Errorf("this is a notebook cell, but %s is not set", protocol.GONB_TMP_DIR_ENV)
	}
	return folderStore(filepath.Join(folder, keptFolder)), nil
}

// memoryStore keeps values in memory, encoded like those in files so that they behave alike.
type memoryStore struct {
	mu   sync.Mutex
	data map[string][]byte
}

var processStore memoryStore

func (s *memoryStore) put(name string, value reflect.Value) error {
	var b bytes.Buffer
	if err := encode(&b, value); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		s.data = make(map[string][]byte)
	}
	s.data[name] = b.Bytes()
	return nil
}

func (s *memoryStore) get(name string) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, found := s.data[name]
	return data, found, nil
}

func (s *memoryStore) names() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.data)), nil
}

// folderStore keeps each value in one file of a folder. A file's name is the value's name in hexadecimal, which is safe
// whatever the name contains and also where file names ignore case.
type folderStore string

const (
	keptSuffix   = ".kept"
	unfinishedAs = "unfinished-*"
)

func (s folderStore) path(name string) string {
	return filepath.Join(string(s), hex.EncodeToString([]byte(name))+keptSuffix)
}

func (s folderStore) put(name string, value reflect.Value) (err error) {
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(s), unfinishedAs)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriterSize(f, 1<<16)
	err = encode(w, value)
	if err == nil {
		err = w.Flush()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), s.path(name))
}

func (s folderStore) get(name string) ([]byte, bool, error) {
	data, err := os.ReadFile(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return data, err == nil, err
}

func (s folderStore) names() ([]string, error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		encoded, ok := strings.CutSuffix(e.Name(), keptSuffix)
		if !ok {
			continue
		}
		if name, err := hex.DecodeString(encoded); err == nil {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names, nil
}
