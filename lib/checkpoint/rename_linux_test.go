package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"golang.org/x/sys/unix"
)

// By the kernel's record of events in the folder, a checkpoint's name appears by a rename of a complete one and
// disappears by a rename, and in no other way.
func TestRenamed(t *testing.T) {
	dir := t.TempDir()
	save1(t, dir, 1, 0)
	fd := must.Get(syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC))(t)
	defer syscall.Close(fd)
	const mask = syscall.IN_CREATE | syscall.IN_DELETE | syscall.IN_MOVED_TO | syscall.IN_MOVED_FROM
	must.Get(syscall.InotifyAddWatch(fd, dir, mask))(t)
	save1(t, dir, 2, 1)
	buffer := make([]byte, 1<<16)
	n := must.Get(syscall.Read(fd, buffer))(t)
	var got []string
	for events := buffer[:n]; len(events) > 0; { // see inotify(7): struct inotify_event
		kind, length := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		name := string(bytes.TrimRight(events[16:][:length], "\x00"))
		events = events[16+length:]
		if draftName.MatchString(name) {
			continue
		}
		for bit, what := range map[uint32]string{syscall.IN_CREATE: "created", syscall.IN_DELETE: "deleted",
			syscall.IN_MOVED_TO: "came", syscall.IN_MOVED_FROM: "went"} {
			if kind&bit != 0 {
				got = append(got, name+" "+what)
			}
		}
	}
	if want := []string{"step-00000002 came", "step-00000001 went"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The file that was checked is the one that is read, although a file and a link out of the folder are swapped all the
// while.
func TestLinkPlantedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	name, link, secret := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(t.TempDir(), "secret")
	must.Do(t, errors.Join(os.WriteFile(name, []byte("ours"), 0o644), os.WriteFile(secret, []byte("secret"), 0o644),
		os.Symlink(secret, link)))
	var planter sync.WaitGroup
	defer planter.Wait()
	done := make(chan struct{})
	defer close(done)
	planter.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5000 {
		f, size, err := openRegular(name)
		if err != nil {
			if !strings.Contains(err.Error(), "is not a regular file") {
				t.Fatal(err)
			}
			continue
		}
		text, err := io.ReadAll(f)
		f.Close()
		if string(text) != "ours" || size != int64(len(text)) || err != nil {
			t.Fatalf("it holds %q, %v, size %d", text, err, size)
		}
	}
}
