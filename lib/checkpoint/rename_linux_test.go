package checkpoint

import (
	"bytes"
	"encoding/binary"
	"slices"
	"syscall"
	"testing"
)

// The kernel's own record of what happens in the folder: a checkpoint's name comes by a rename of what is complete, and
// goes by one, and in no other way.
func TestRenamed(t *testing.T) {
	dir := t.TempDir()
	save1(t, dir, 1, 0)
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	const mask = syscall.IN_CREATE | syscall.IN_DELETE | syscall.IN_MOVED_TO | syscall.IN_MOVED_FROM
	if _, err := syscall.InotifyAddWatch(fd, dir, mask); err != nil {
		t.Fatal(err)
	}
	save1(t, dir, 2, 1)
	buffer := make([]byte, 1<<16)
	n, err := syscall.Read(fd, buffer)
	if err != nil {
		t.Fatal(err)
	}
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
