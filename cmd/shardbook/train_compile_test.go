package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// TestCompileFor compiles the steps whose temporary memory an H100 with the same plugin has reported (docs/cuda.md). It
// left out conversions that are now kept.
func TestCompileFor(t *testing.T) {
	devicetest.OpenFor(t, "h100", 1) // or skipped
	for _, c := range systest.OfFull(t, 1, []struct {
		flash string
		want  float64 // MB
	}{{"on", 748}, {"off", 1823}}) {
		printed := must.Get(ran(t, strings.Fields("train --layers 4 --d 512 --heads 8 --seq 1024 --batch 8 --precision bf16 "+
			"--compile-for h100 --json --text reference --flash="+c.flash)...))(t)
		var got compiledFor
		must.Do(t, json.Unmarshal([]byte(printed), &got))
		if mb := float64(got.Temporary) / 1e6; math.Abs(mb/c.want-1) > 0.02 || got.GPU != "h100" || got.Devices != 1 {
			t.Errorf("--flash=%s: %+v, want %g MB of temporary memory", c.flash, got, c.want)
		}
	}
}

func TestCompileForTrainsNothing(t *testing.T) {
	_, err := ran(t, "train", "--compile-for", "h100", "--checkpoint", t.TempDir()+"/new")
	must.Refuse(t, "a checkpoint", err, "leave out --checkpoint")
	_, err = ran(t, "train", "--compile-for", "k80")
	must.Refuse(t, "another GPU", err, "k80", "h100")
}
