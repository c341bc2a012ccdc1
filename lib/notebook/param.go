package notebook

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// EnvParams is the environment variable that sets parameters. It holds a JSON object whose values are strings, such as
// {"devices":"16"}; see [EncodeParams].
const EnvParams = "SHARDBOOK_PARAMS"

// Param returns the value that [EnvParams] sets for the parameter called name, or def if it sets none: a whole number,
// a number, text, true or false, or a duration such as 1m30s.
//
//	devices := notebook.Param("devices", 8)
//
// If the value set is not a T, Param ends the program as [Check] does. Write name as a string literal, so that
// [ParamNames] finds it.
func Param[T paramValue](name string, def T) T {
	Check(lookupParam(name, &def))
	return def
}

type paramValue interface {
	int | float64 | string | bool | time.Duration
}

// lookupParam sets what a pointer to a paramValue points to, if the parameter is set. After an error the value is of no
// use. It is not generic, since each cell compiles the generic functions that it calls.
func lookupParam(name string, value any) error {
	values, err := decodeParams(os.Getenv(EnvParams))
	if err != nil {
		return err
	}
	text, ok := values[name]
	if !ok {
		return nil
	}
	if err := parseParam(text, value); err != nil {
		return fmt.Errorf("notebook: parameter %q is set to %q, which is not %w", name, text, err)
	}
	return nil
}

// parseParam parses text as what a pointer points to. Its error describes the type.
func parseParam(text string, value any) (err error) {
	var wanted string
	switch p := value.(type) {
	case *int:
		wanted = "a whole number (int) such as 8"
		*p, err = strconv.Atoi(text)
	case *float64:
		wanted = "a number (float64) such as 0.5"
		*p, err = strconv.ParseFloat(text, 64)
	case *bool:
		wanted = "true or false (bool)"
		*p, err = strconv.ParseBool(text)
	case *time.Duration:
		wanted = "a duration (time.Duration) such as 1m30s"
		*p, err = time.ParseDuration(text)
	case *string:
		*p = text
	}
	if errors.Is(err, strconv.ErrRange) {
		return errors.New(wanted + ": it is out of range")
	}
	if err != nil {
		return errors.New(wanted)
	}
	return nil
}

func decodeParams(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	var values map[string]string
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("notebook: the environment variable %s is %q, which is not a JSON object of strings "+
			`such as {"devices":"16"}: %w`, EnvParams, text, err)
	}
	return values, nil
}

// EncodeParams returns the text for [EnvParams] that sets each parameter in values, by name, to its value as text.
// Equal maps give equal texts.
func EncodeParams(values map[string]string) (string, error) {
	text, err := json.Marshal(values)
	return string(text), err
}

var (
	comment   = regexp.MustCompile(`//.*|(?s:/\*.*?\*/)`)
	paramCall = regexp.MustCompile(`\bnotebook\.Param(?:\[[\w.]+\])?\(\s*"([^"\\]*)"\s*,`)
)

// ParamNames returns the names of the parameters that the given notebook cells read by [Param], sorted and each once.
// It searches their text for calls outside comments, and so finds only names that are string literals.
func ParamNames(cells ...string) (names []string) {
	for _, cell := range cells {
		for _, call := range paramCall.FindAllStringSubmatch(comment.ReplaceAllString(cell, ""), -1) {
			names = append(names, call[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
