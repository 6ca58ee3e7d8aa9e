# Reads the part of #cloud-config this image knows and prints one fact per line: name, tab, value.
# Block style only; a flow collection other than chpasswd's { expire: ... } is reported as unread.

function indent_of(line) { match(line, /^ */); return RLENGTH }

function scalar(text) {
  sub(/^[ \t]+/, "", text)
  if (text ~ /^"/) { sub(/^"/, "", text); sub(/"[ \t]*(#.*)?$/, "", text); gsub(/\\"/, "\"", text); gsub(/\\\\/, "\\", text); return text }
  if (text ~ /^'/) { sub(/^'/, "", text); sub(/'[ \t]*(#.*)?$/, "", text); gsub(/''/, "'", text); return text }
  sub(/[ \t]+#.*$/, "", text)
  sub(/[ \t]+$/, "", text)
  return text
}

function fact(name, value) { printf "%s\t%s\n", name, value }
function unread(what) { if (!(what in told)) { told[what] = 1; fact("unread", what) } }

function top(name, value) {
  section = name; field = ""; user = ""
  if (name == "hostname" || name == "fqdn") { if (scalar(value) != "") fact("hostname", scalar(value)) }
  else if (name == "password" || name == "ssh_pwauth") fact(name, scalar(value))
  else if (name == "chpasswd") { if (value !~ /^[ \t]*(#.*)?$/ && value !~ /^[ \t]*\{[ \t]*expire[ \t]*:[ \t]*[A-Za-z]+[ \t]*\}[ \t]*$/) unread("chpasswd: " value) }
  else if (name == "ssh_authorized_keys" || name == "runcmd") { if (value !~ /^[ \t]*(#.*)?$/) unread(name " in flow style") }
  else if (name == "manage_etc_hosts" || name == "preserve_hostname" || name == "disable_root") { }
  else { section = ""; unread(name) }
}

function item(text) {
  if (section == "ssh_authorized_keys") fact("key", scalar(text))
  else if (section == "runcmd") { if (text ~ /^[ \t]*[\[|>]/) unread("runcmd item " text); else fact("runcmd", scalar(text)) }
  else if (section == "chpasswd" && field == "list") fact("chpasswd", scalar(text))
  else if (section == "chpasswd" && field == "users") pair(text)
  else if (section != "") unread(section " item")
}

function pair(text,   name, value) {
  name = text; sub(/[ \t]*:.*$/, "", name); sub(/^[ \t]+/, "", name)
  value = text; sub(/^[^:]*:/, "", value)
  if (section == "chpasswd" && field == "users" && (name == "name" || name == "password" || name == "type")) {
    if (name == "name") user = scalar(value)
    if (name == "password") fact("chpasswd", user ":" scalar(value))
  }
  else if (section == "chpasswd" && name == "expire") { }
  else if (section == "chpasswd" && (name == "list" || name == "users")) {
    field = name
    if (scalar(value) ~ /^[|>]/) block = indent_of($0) + 1
  }
  else if (section != "") unread(section "." name)
}

{ sub(/\r$/, "") }
block && indent_of($0) >= block { line = $0; sub(/^ +/, "", line); if (line != "") fact("chpasswd", line); next }
{ block = 0 }
/^[ \t]*(#.*)?$/ { next }
/^[^ \t-][^:]*:/ { name = $0; sub(/[ \t]*:.*$/, "", name); value = $0; sub(/^[^:]*:/, "", value); top(name, value); next }
/^ *- / { line = $0; sub(/^ *- +/, "", line); item(line); next }
{ pair($0) }
