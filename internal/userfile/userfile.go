// Package userfile opens files that a user names. It only reads or replaces regular files up to a size, and opening
// never blocks. Its errors are one sentence with the path.
package userfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"syscall"
)

// Open opens a regular file of at most limit bytes for reading.
func Open(path string, limit int64) (*os.File, error) { return open(path, os.O_RDONLY, limit) }

// Edit opens a regular file of at most limit bytes for reading and writing, or creates it. flags are more flags of
// os.OpenFile, such as os.O_TRUNC.
func Edit(path string, flags int, limit int64) (*os.File, error) {
	return open(path, os.O_RDWR|os.O_CREATE|flags, limit)
}

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	file, err := Open(path, limit)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadAll(file, path, limit)
}

// ReadAll reads at most limit bytes of the file at the path, which may be growing or a stream, and returns an error if
// it has more.
func ReadAll(r io.Reader, path string, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = tooLong(path, fmt.Sprintf("more than %d", limit), limit)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Append opens a file for appending, or creates it. A regular file can also be read and truncated. A pipe with a
// reader, a terminal or another character device can only be written.
func Append(path string) (*os.File, error) {
	if info, err := os.Stat(path); err != nil || !isStream(info) {
		return Edit(path, os.O_APPEND, math.MaxInt64)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("%s is a pipe or device that nobody reads: start its reader first, or "+
			"choose a regular file", path)
	}
	return file, err
}

func isStream(info fs.FileInfo) bool { return info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0 }

// open checks the file before it opens it, since opening alone has effects on some devices, and again afterwards.
func open(path string, flags int, limit int64) (*os.File, error) {
	if info, err := os.Stat(path); err == nil {
		if err := check(path, info, limit); err != nil {
			return nil, err
		}
	}
	file, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0o644) // a pipe would block until its other end is open
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = check(path, info, limit)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// check returns an error unless the file is regular and not too large.
func check(path string, info fs.FileInfo, limit int64) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %s: give a regular file", path, kind(info.Mode()))
	}
	if info.Size() > limit {
		return tooLong(path, fmt.Sprint(info.Size()), limit)
	}
	return nil
}

func tooLong(path, size string, limit int64) error {
	return fmt.Errorf("%s has %s bytes: give a file of at most %d", path, size, limit)
}

// kind names the type of a file that is not regular.
func kind(mode fs.FileMode) string {
	for _, k := range []struct {
		bit  fs.FileMode
		name string
	}{{fs.ModeDir, "a folder"}, {fs.ModeNamedPipe, "a named pipe"}, {fs.ModeSocket, "a socket"},
		{fs.ModeCharDevice, "a character device"},
		{fs.ModeDevice, "a block device"}} {
		if mode&k.bit != 0 {
			return k.name
		}
	}
	return "no regular file"
}
