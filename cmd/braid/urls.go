package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// checkScheme refuses what this version cannot serve: a URL that promises encryption is not served without it.
func checkScheme(u *url.URL) error {
	if u.Scheme == "https" || u.Scheme == "unixs" {
		return fmt.Errorf("%s: TLS is not supported in this version", u)
	}
	return nil
}

// checkBind tells whether a URL can be listened on: as in etcd, names of hosts are for others to resolve.
func checkBind(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if err := checkScheme(u); err != nil || u.Scheme == "unix" {
		return err
	}
	if host := u.Hostname(); host != "localhost" && net.ParseIP(host) == nil {
		return fmt.Errorf("expected IP in URL for binding (%s)", s)
	}
	return nil
}

// checkAdvertised tells whether others could use a URL.
func checkAdvertised(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if err := checkScheme(u); err != nil || u.Scheme == "unix" {
		return err
	}
	if strings.HasPrefix(u.Host, ":") {
		return fmt.Errorf("unexpected empty host (%s)", s)
	}
	return nil
}
