package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/internal/tensorboard"
	"github.com/shardbook/shardbook/lib/chart"
)

// openCurves opens the file of --tensorboard, if it is set.
func (t *training) openCurves() (err error) {
	if t.options.tensorboard == "" {
		return nil
	}
	if t.rate, err = t.job.Rate(); err != nil {
		return err
	}
	if t.events, err = tensorboard.Create(t.options.tensorboard, t.began+1); err != nil {
		return fmt.Errorf("--tensorboard: %w", err)
	}
	return nil
}

// writeEvent writes a step for TensorBoard.
func (t *training) writeEvent(r stepRecord) error {
	if t.events == nil {
		return nil
	}
	scalars := []tensorboard.Scalar{
		{Tag: "train/loss", Value: r.Loss},
		{Tag: "train/learning_rate", Value: t.job.LR * t.rate.At(r.Step)},
		{Tag: "performance/tokens_per_s", Value: r.TokensPerS},
		{Tag: "performance/device_memory_bytes", Value: float64(r.Bytes)},
	}
	if r.GradNorm > 0 { // else it is not computed
		scalars = append(scalars, tensorboard.Scalar{Tag: "train/grad_norm", Value: r.GradNorm})
	}
	err := t.events.Write(r.Step, scalars...)
	if err != nil {
		return fmt.Errorf("--tensorboard: %w", err)
	}
	return nil
}

// drawLoss writes the chart of the loss, if --chart is set.
func (t *training) drawLoss() error {
	path := t.options.chart
	if path == "" || len(t.records) == 0 {
		return nil
	}
	var loss chart.Series
	for _, r := range t.records {
		loss.X, loss.Y = append(loss.X, float64(r.Step)), append(loss.Y, r.Loss)
	}
	c := chart.Line("training loss", "step", "loss (nats)", loss)
	write, same := func(w io.Writer) error { return writePage(w, "training loss", c) }, isPage
	if filepath.Ext(path) == ".svg" {
		same = func(r io.Reader) bool {
			start := make([]byte, 4)
			_, err := io.ReadFull(r, start)
			return err == nil && string(start) == "<svg"
		}
		write = func(w io.Writer) error {
			svg, err := c.SVG()
			if err == nil {
				_, err = io.Copy(w, strings.NewReader(svg))
			}
			return err
		}
	}
	if err := replaceFile(path, same, write); err != nil {
		return fmt.Errorf("--chart: %w", err)
	}
	return nil
}
