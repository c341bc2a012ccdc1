//go:build resident

package notebook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/janpfeifer/gonb/gonbui/protocol"

	"github.com/shardbook/shardbook/lib/resident"
)

// openStore returns the store of the notebook's process.
func openStore() (store, error) {
	c, err := resident.Notebook()
	return notebookStore{c}, err
}

// notebookStore has the values in the notebook's process, and tensors of devices in the processes with these.
type notebookStore struct{ *resident.Conn }

func (s notebookStore) put(name string, v stored) error {
	_, err := resident.Call[resident.Done](s.Conn, resident.Put{Name: name, Data: v.data, Arrays: v.arrays,
		Program: os.Getenv(protocol.GONB_TMP_DIR_ENV)})
	return err
}

// get also says so if the value is stale.
func (s notebookStore) get(name string) (stored, error) {
	got, err := resident.Call[resident.Got](s.Conn, resident.Get{Name: name,
		Program: os.Getenv(protocol.GONB_TMP_DIR_ENV)})
	switch {
	case err != nil:
		return stored{}, err
	case !got.Found:
		return stored{}, fs.ErrNotExist
	case got.Lost != "":
		return stored{}, errors.New("it is lost, because " + got.Lost + ": run the cell that calls Keep again")
	case len(got.Changed) > 0:
		fmt.Printf("Stale: %q was kept before %s changed. Run the cell that keeps it again.\n", name,
			strings.Join(got.Changed, ", "))
	}
	return stored{got.Data, got.Arrays}, nil
}

func (s notebookStore) names() ([]string, error) {
	are, err := resident.Call[resident.NamesAre](s.Conn, resident.Names{All: true})
	return are.Sorted, err
}
