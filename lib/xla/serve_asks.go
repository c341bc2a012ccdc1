//go:build !resident

package xla

import (
	"errors"
	"sync"

	goxla "github.com/gomlx/go-xla/compute/xla"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/resident"
	"github.com/shardbook/shardbook/lib/xplane"
)

// asked returns a program as an executable that can be asked about itself.
func (l *lender) asked(number uint64) (*executable, error) {
	p, err := l.program(number)
	if err != nil {
		return nil, err
	}
	inner := new(goxla.Executable)
	*executableExec.of(inner) = p.LoadedExecutable
	return &executable{Executable: inner, backend: p.of.Backend}, nil
}

func (l *lender) collectives(_ *resident.Session, ask askCollectives) (is collectivesAre, err error) {
	e, err := l.asked(ask.Program)
	if err == nil {
		is.All, err = e.collectives()
	}
	return is, err
}

func (l *lender) operations(_ *resident.Session, ask askOperations) (is operationsAre, err error) {
	e, err := l.asked(ask.Program)
	if err == nil {
		is.All, err = e.operations()
	}
	return is, err
}

func (l *lender) met(_ *resident.Session, ask askMet) (resident.Done, error) {
	e, err := l.asked(ask.Program)
	if err == nil {
		err = e.met()
	}
	return resident.Done{OK: err == nil}, err
}

// startProfile starts a recording, which the session's end also ends.
func (l *lender) startProfile(s *resident.Session, start startProfile) (profileIs, error) {
	b, err := l.backend(start.Client)
	if err != nil {
		return profileIs{}, err
	}
	started, end := make(chan struct{}), make(chan struct{})
	type result struct {
		profile *xplane.Profile
		err     error
	}
	got := make(chan result, 1)
	go func() {
		profile, err := b.owner.record(func() error {
			close(started)
			<-end
			return nil
		})
		got <- result{profile, err}
	}()
	select {
	case r := <-got:
		if errors.Is(r.err, ErrNoProfiler) {
			return profileIs{NoProfiler: true}, nil
		}
		return profileIs{}, r.err
	case <-started:
	}
	stop := sync.OnceValues(func() (*xplane.Profile, error) {
		close(end)
		r := <-got
		return r.profile, r.err
	})
	s.AtEnd(func() { _, _ = stop() })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.profiler = stop
	return profileIs{}, nil
}

func (l *lender) endProfile(*resident.Session, endProfile) (is profileIs, err error) {
	l.mu.Lock()
	stop := l.profiler
	l.profiler = nil
	l.mu.Unlock()
	if stop == nil {
		return is, errors.New("no recording is going on")
	}
	is.Profile, err = stop()
	return is, err
}

func (l *lender) memory(_ *resident.Session, ask askMemory) (is memoryIs, err error) {
	if ask.Free {
		plugin.FreeMemory()
	}
	is.Used, is.Unused = plugin.Memory()
	is.Processor = ownTime()
	return is, nil
}

func (l *lender) deviceMemory(_ *resident.Session, ask askDevice) (DeviceMemory, error) {
	b, err := l.backend(ask.Client)
	if err != nil {
		return DeviceMemory{}, err
	}
	return b.DeviceMemory(ask.Device)
}
