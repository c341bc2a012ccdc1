package main

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/step/draw"
	"github.com/shardbook/shardbook/lib/trace"
)

// write writes the files that flags name. It is an error if a file exists and is of another kind.
func (o *scheduleOptions) write(t step.Timeline) error {
	for _, f := range []struct {
		flag, path string
		same       func(io.Reader) bool // reports whether a file is of this kind
		make       func(io.Writer) error
	}{
		{"csv", strings.TrimPrefix(o.csv, "-"), isScheduleCSV, t.Plan.WriteCSV},
		{"trace", o.trace, isTrace, func(w io.Writer) error {
			tr, err := draw.Trace(t, time.Millisecond)
			if err != nil {
				return err
			}
			return tr.WriteChrome(w)
		}},
		{"chart", o.chart, isPage, func(w io.Writer) error { return writeSchedulePage(w, t) }},
	} {
		if f.path == "" {
			continue
		}
		if err := inFlag(f.flag, replaceFile(f.path, f.same, f.make)); err != nil {
			return err
		}
	}
	return nil
}

// maxReplaced is the maximum size of a file to replace: more than this program writes.
const maxReplaced = 512 << 20

// replaceFile computes the content before it opens the file, so that an error does not change an old file.
func replaceFile(path string, same func(io.Reader) bool, make func(io.Writer) error) error {
	old, err := userfile.Read(path, maxReplaced)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(old) > 0 && !same(bytes.NewReader(old)):
		return fmt.Errorf("%s exists and was not written by this flag: choose another file", path)
	}
	var text bytes.Buffer
	if err := make(&text); err != nil {
		return err
	}
	file, err := userfile.Edit(path, os.O_TRUNC, maxReplaced)
	if err != nil {
		return err
	}
	_, err = file.Write(text.Bytes())
	return errors.Join(err, file.Close())
}

func isScheduleCSV(r io.Reader) bool {
	_, err := step.ReadCSV(r)
	return err == nil
}

func isTrace(r io.Reader) bool {
	old, err := trace.ReadChrome(r)
	return err == nil && len(old.Spans)+len(old.Counters) > 0
}

// pageStart begins a page of charts, and identifies such files.
const pageStart = "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"shardbook\">\n"

func isPage(r io.Reader) bool {
	start, err := io.ReadAll(io.LimitReader(r, int64(len(pageStart))))
	return err == nil && string(start) == pageStart
}

// writePage writes charts as a self-contained page.
func writePage(w io.Writer, title string, charts ...*chart.Chart) error {
	page := pageStart + "<title>" + html.EscapeString(title) + "</title>\n"
	for _, c := range charts {
		fragment, err := c.HTML()
		if err != nil {
			return err
		}
		page += fragment + "\n"
	}
	_, err := io.WriteString(w, page)
	return err
}

// writeSchedulePage writes the timeline's charts.
func writeSchedulePage(w io.Writer, t step.Timeline) error {
	name := fmt.Sprintf("%s, %d devices, %d micro-batches", t.Plan.Name, len(t.Start), t.Plan.Micro)
	return writePage(w, name, draw.Chart(t, name).Axes("time", ""),
		draw.Memory(t, "saved activations").Axes("time", "micro-batches of a device's part"))
}
