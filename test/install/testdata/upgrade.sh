# A newer package, over mail that waits and a configuration that was changed.
echo 'mine.example' >>/etc/zmailer/localnames
zmctl queue | grep ann@far.example || fail "nothing waits"
picture >/tmp/before
dpkg -i "$1"
same "the upgrade"
dpkg-query -W -f '${Version}\n' zmailer
grep -q '^mine.example$' /etc/zmailer/localnames || fail "localnames is the package's"
begin
printf 'Subject: after\n\nAfter the upgrade.\n' | sendmail alice@mine.example
await grep -q 'After the upgrade.' /var/mail/alice
zmctl queue | grep -q ann@far.example || fail "what waited is gone"
end

# While they run, too.
begin
dpkg -i "$1"
printf 'Subject: again\n\nThe daemons ran on.\n' | sendmail alice
await grep -q 'The daemons ran on.' /var/mail/alice
end

# Those of zmctl start are restarted: no process of the old version is left (Op14).
zmctl start >/dev/null
dpkg -i "$1"
readlink /proc/[0-9]*/exe | grep -q libexec/zmailer/scheduler || fail "no scheduler runs"
if readlink /proc/[0-9]*/exe | grep 'libexec/zmailer/.*(deleted)'; then fail "the old version runs on"; fi
zmctl stop >/dev/null
# And where none runs none is started.
dpkg -i "$1"
if readlink /proc/[0-9]*/exe | grep libexec/zmailer/; then fail "the upgrade has started something"; fi
