package notebook

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
	"unicode/utf8"
)

// EnvParams is the environment variable that sets parameters. It holds a JSON object whose values are strings, such as
// {"devices":"16"}; see [EncodeParams].
const EnvParams = "SHARDBOOK_PARAMS"

// ParamValue is the type of a parameter: a whole number, a number, text, true or false, or a duration such as 1m30s.
type ParamValue interface {
	int | float64 | string | bool | time.Duration
}

// Param returns the value that [EnvParams] sets for the parameter called name, or def if it sets none.
//
//	devices := notebook.Param("devices", 8)
//
// If the value set is not a T, Param ends the program as [Check] does. Programs that must go on use [LookupParam].
//
// Write name as a string literal, so that [ParamNames] finds it.
func Param[T ParamValue](name string, def T) T {
	return Must(LookupParam(name, def))
}

// LookupParam returns the value that [EnvParams] sets for the parameter called name, or def if it sets none. The error
// names the parameter, its value and the wanted type if the value is not a T; def is returned then.
func LookupParam[T ParamValue](name string, def T) (T, error) {
	values, err := decodeParams(os.Getenv(EnvParams))
	if err != nil {
		return def, err
	}
	text, ok := values[name]
	if !ok {
		return def, nil
	}
	value, err := parseParam[T](text)
	if err != nil {
		return def, fmt.Errorf("notebook: parameter %q is set to %q, which is not %w", name, text, err)
	}
	return value, nil
}

// parseParam's error describes the type that text is not of.
func parseParam[T ParamValue](text string) (T, error) {
	var value T
	var err error
	var wanted string
	switch p := any(&value).(type) {
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
		return value, errors.New(wanted + ": it is out of range")
	}
	if err != nil {
		return value, errors.New(wanted)
	}
	return value, nil
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
// Equal maps give equal texts. It returns an error for a name that is empty, and for text that is not valid UTF-8.
func EncodeParams(values map[string]string) (string, error) {
	for name, value := range values {
		if name == "" {
			return "", fmt.Errorf("notebook: a parameter without a name is set to %q", value)
		}
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return "", fmt.Errorf("notebook: parameter %q set to %q is not valid UTF-8", name, value)
		}
	}
	if values == nil {
		values = map[string]string{}
	}
	text, err := json.Marshal(values)
	return string(text), err
}
