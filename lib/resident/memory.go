package resident

import (
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is memory that a process shares with others, who see it at addresses of their own.
type Memory struct {
	file *os.File
	all  []byte
}

// OpenMemory maps a file of shared memory.
func OpenMemory(file *os.File) (*Memory, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	all, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of shared memory: %w", info.Size(), err)
	}
	return &Memory{file, all}, nil
}

// MemorySize is the size of the memory that processes with devices share.
const MemorySize = 1 << 40

// Share returns a file of shared memory to give to others. It is not mapped.
func Share(file *os.File) *Memory { return &Memory{file: file} }

// At returns the address of a place in the memory.
func (m *Memory) At(offset int64) unsafe.Pointer { return unsafe.Pointer(&m.all[offset]) }

// send sends the memory's file, or that there is none.
func (m *Memory) send(socket *net.UnixConn) error {
	if m == nil {
		_, err := socket.Write([]byte{0})
		return err
	}
	_, _, err := socket.WriteMsgUnix([]byte{1}, unix.UnixRights(int(m.file.Fd())), nil)
	return err
}

// receiveMemory maps what send has sent.
func receiveMemory(socket *net.UnixConn) (*Memory, error) {
	greeting, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, controls, _, _, err := socket.ReadMsgUnix(greeting, control)
	if err != nil || n == 0 {
		return nil, errors.Join(errors.New("the resident process does not answer"), err)
	}
	if greeting[0] == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("the resident process has sent no memory"), err)
	}
	files, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(files[0]), "shared memory")
	defer file.Close() // the mapping stays
	return OpenMemory(file)
}
