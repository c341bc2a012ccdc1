package notebook

import (
	"io/fs"
	"slices"
	"sync"

	"github.com/shardbook/shardbook/lib/resident"
)

// store holds encoded values by name.
type store interface {
	put(name string, v stored) error
	get(name string) (stored, error) // fs.ErrNotExist if there is none
	names() ([]string, error)        // sorted
}

// stored is an encoded value.
type stored struct {
	data   []byte
	arrays []resident.KeptArray // of tensors that stay on devices; data has their places in this list
}

// memoryStore has values in memory, encoded like those in files so that they behave alike.
type memoryStore struct{ data sync.Map } // of stored by name

var processStore memoryStore

func (s *memoryStore) put(name string, v stored) error {
	s.data.Store(name, v)
	return nil
}

func (s *memoryStore) get(name string) (stored, error) {
	if v, found := s.data.Load(name); found {
		return v.(stored), nil
	}
	return stored{}, fs.ErrNotExist
}

func (s *memoryStore) names() (names []string, err error) {
	for name := range s.data.Range {
		names = append(names, name.(string))
	}
	slices.Sort(names)
	return names, nil
}
