package residual

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/xla"
)

// Stash keeps a rank's activation checkpoints between its forward and its backward pass, for ranks that drive a model block
// by block. Of each the rank keeps only its part (P_a, ZeRO §6.1), on its device or in the host's memory (P_a+cpu).
//
// The ranks of the stash's group have the same checkpoints, as under tensor parallelism. With a group of one rank nothing is
// divided nor sent, and a stash on the host is plain offloading.
//
// It is for one goroutine. Nothing runs in the background.
type Stash struct {
	backend *xla.Backend
	device  int
	g       group.Group
	where   offload.Where

	kept      map[int]kept
	now, peak [2]int64 // bytes, by offload.Where
}

// kept is a rank's part of a checkpoint's bytes, and behind it the rest, which the ranks cannot share evenly: less than a byte
// for each of them, which all keep.
type kept struct {
	of     shapes.Shape
	part   int             // bytes before the rest
	host   []byte          // nil if they are on the device
	device *tensors.Tensor // nil if they are on the host; for one rank the checkpoint itself
}

func (k kept) bytes(ranks int) int64 { return k.of.ByteSize() - int64((ranks-1)*k.part) }

// NewStash returns an empty stash for checkpoints on a CPU device, by its number, that all ranks of g have. A device or a
// place that does not exist is an error.
func NewStash(backend *xla.Backend, device int, g group.Group, where offload.Where) (*Stash, error) {
	switch {
	case backend == nil || g == nil:
		return nil, errors.New("residual: a stash of no backend or no group: give both, one rank where nothing is divided")
	case device < 0 || device >= backend.Info().Devices:
		return nil, fmt.Errorf("residual: a stash on device %d of %d: count from 0", device, backend.Info().Devices)
	case where != offload.Device && where != offload.Host:
		return nil, fmt.Errorf("residual: a stash in %v: choose offload.Device or offload.Host", where)
	}
	return &Stash{backend: backend, device: device, g: g, where: where, kept: map[int]kept{}}, nil
}

// Put keeps the rank's part of checkpoint i and frees x, which must lie on the stash's device and is the stash's from now on:
// one rank by itself, with a stash on the device, keeps x as it is. Nothing is exchanged. After an error x is still the caller's.
func (s *Stash) Put(ctx context.Context, i int, x *tensors.Tensor) error {
	if err := s.put(ctx, i, x); err != nil {
		return fmt.Errorf("residual: keeping checkpoint %d: %w", i, err)
	}
	return nil
}

func (s *Stash) put(ctx context.Context, i int, x *tensors.Tensor) error {
	if ctx != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, ok := s.kept[i]; ok {
		return errors.New("there is one already: Get or Drop it first")
	}
	all, err := memory(x)
	if err != nil {
		return err
	}
	if on, err := x.Backend(); err != nil || on != compute.Backend(s.backend) || !x.IsOnDevice(xla.DeviceNum(s.device)) {
		return fmt.Errorf("it does not lie on device %d of the stash's backend: put it there", s.device)
	}
	k := kept{of: x.Shape(), part: len(all) / s.g.Size()}
	if s.g.Size() == 1 && s.where == offload.Device {
		k.device = x
		s.remember(i, k)
		return nil
	}
	from, rest := s.g.Rank()*k.part, s.g.Size()*k.part
	mine := slices.Concat(all[from:from+k.part], all[rest:])
	if s.where == offload.Host {
		k.host = mine
	} else if k.device, err = s.place(mine, shapes.Make(dtypes.Uint8, len(mine))); err != nil {
		return err
	}
	s.remember(i, k)
	return x.FinalizeAll()
}

// place copies bytes to the device, as a tensor of a shape.
func (s *Stash) place(bytes []byte, shape shapes.Shape) (*tensors.Tensor, error) {
	buffer, err := s.backend.BufferFromFlatData(xla.DeviceNum(s.device), bytes, shape)
	if err != nil {
		return nil, err
	}
	return tensors.FromBuffer(buffer)
}

// Get returns checkpoint i, whole and on the device, and keeps nothing of it. All ranks of the group get it at the same
// time, in one all-gather: (N−1)/N of its bytes for each of N ranks to send. A checkpoint that was not Put is an error, and
// after any error the stash keeps what it has.
func (s *Stash) Get(ctx context.Context, i int) (*tensors.Tensor, error) {
	x, err := s.get(ctx, i)
	if err != nil {
		return nil, fmt.Errorf("residual: getting checkpoint %d: %w", i, err)
	}
	return x, nil
}

func (s *Stash) get(ctx context.Context, i int) (_ *tensors.Tensor, err error) {
	k, ok := s.kept[i]
	if !ok {
		return nil, errors.New("there is none: Put it first")
	}
	if s.g.Size() == 1 && k.device != nil {
		s.forget(i)
		return k.device, nil
	}
	mine := k.host
	if k.device != nil {
		if mine, err = memory(k.device); err != nil {
			return nil, err
		}
	}
	x, err := s.place(make([]byte, k.of.ByteSize()), k.of)
	if err != nil {
		return nil, err
	}
	all, err := memory(x)
	if err == nil {
		rest := s.g.Size() * k.part
		copy(all[rest:], mine[k.part:])
		err = group.AllGather(ctx, s.g, mine[:k.part], all[:rest])
	}
	if err != nil {
		return nil, errors.Join(err, x.FinalizeAll())
	}
	return x, s.Drop(i)
}

// Drop frees what is kept of checkpoint i. One that was not Put is an error.
func (s *Stash) Drop(i int) error {
	k, ok := s.kept[i]
	if !ok {
		return fmt.Errorf("residual: dropping checkpoint %d: there is none", i)
	}
	s.forget(i)
	if k.device == nil {
		return nil
	}
	return k.device.FinalizeAll()
}

func (s *Stash) remember(i int, k kept) {
	s.kept[i] = k
	s.now[s.where] += k.bytes(s.g.Size())
	s.peak[s.where] = max(s.peak[s.where], s.now[s.where])
}

func (s *Stash) forget(i int) {
	s.now[s.where] -= s.kept[i].bytes(s.g.Size())
	delete(s.kept, i)
}

// Close frees all that is kept. The stash is empty then, and may be used again.
func (s *Stash) Close() error {
	var errs []error
	for i := range s.kept {
		errs = append(errs, s.Drop(i))
	}
	return errors.Join(errs...)
}

// Bytes returns what the rank keeps now on its device and on the host.
func (s *Stash) Bytes() (device, host int64) { return s.now[offload.Device], s.now[offload.Host] }

// Peak returns the most that Bytes has been.
func (s *Stash) Peak() (device, host int64) { return s.peak[offload.Device], s.peak[offload.Host] }
