package ddp

import "github.com/shardbook/shardbook/lib/xla"

// BackwardMemory is what the backward programs of the blocks need, by name, after a step.
func (e *Engine) BackwardMemory() (map[string]xla.Memory, error) {
	all := map[string]xla.Memory{}
	for _, b := range e.blocks {
		m, err := b.backward.Memory()
		if err != nil {
			return nil, err
		}
		all[b.Name] = m
	}
	return all, nil
}
