// Package userfile opens files that a user names, who may name anything: only a regular file within a size is read or
// replaced, and opening never waits. What is refused is refused with one sentence that has its path.
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

// Open opens a regular file to read. One of more than most bytes is refused.
func Open(path string, most int64) (*os.File, error) { return open(path, os.O_RDONLY, most) }

// Edit opens a regular file to read and write, and creates it where there is none. One of more than most bytes is
// refused. Flags of os.OpenFile, such as os.O_TRUNC, are added.
func Edit(path string, flags int, most int64) (*os.File, error) {
	return open(path, os.O_RDWR|os.O_CREATE|flags, most)
}

// Read returns the content of a regular file. One of more than most bytes is refused.
func Read(path string, most int64) ([]byte, error) {
	file, err := Open(path, most)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadAll(file, path, most)
}

// ReadAll reads to the end of what the path names, which may grow meanwhile or be a stream. More than most
// bytes are refused.
func ReadAll(r io.Reader, path string, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(text)) > most {
		err = tooLong(path, fmt.Sprintf("more than %d", most), most)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Append opens a file to add to its end, and creates it where there is none; one that is regular can be read and cut,
// too. It may also be a pipe that somebody reads, a terminal or another device without blocks, which can only be
// written.
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

// open looks at the file before it opens it, as opening alone does something to some devices, and again at what it
// opened.
func open(path string, flags int, most int64) (*os.File, error) {
	if info, err := os.Stat(path); err == nil {
		if err := check(path, info, most); err != nil {
			return nil, err
		}
	}
	file, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0o644) // or a pipe would wait for its other end
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = check(path, info, most)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// check returns an error for what is no regular file, or is too long.
func check(path string, info fs.FileInfo, most int64) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %s: give a regular file", path, kind(info.Mode()))
	}
	if info.Size() > most {
		return tooLong(path, fmt.Sprint(info.Size()), most)
	}
	return nil
}

func tooLong(path, size string, most int64) error {
	return fmt.Errorf("%s has %s bytes: give a file of at most %d", path, size, most)
}

// kind is what a file is that is not regular.
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
