# Away with it: stopped, disabled, and nothing left but configuration and mail.
send 'it stays' ann@later.example
await sh -c "zmctl queue | grep -q 'connection refused'"
systemctl enable --now zmailer-web.service
pids="$(pid_of smtpserver) $(pid_of router) $(pid_of scheduler) $(pid_of agents) $(pid_of web)"
apt-get remove -y zmailer
for pid in $pids; do [ ! -e /proc/$pid ] || fail "$pid still runs: $(tr '\0' ' ' </proc/$pid/cmdline)"; done
[ "$(systemctl list-units --all --no-legend 'zmailer*')" = "" ] || fail "units are left: $(systemctl list-units --all 'zmailer*')"
[ "$(find /etc/systemd /run/systemd/system -name '*zmailer*')" = "" ] || fail "left: $(find /etc/systemd /run/systemd/system -name '*zmailer*')"
[ "$(systemctl is-system-running)" = running ] || fail "$(systemctl --failed)"
[ "$(find /usr/share/man /usr/bin /usr/sbin -name 'sendmail*' -o -name 'mailq*' -o -name 'newaliases*')" = "" ] || fail "links are left"
! connects || fail "somebody listens"
grep -q 'it stays' $spool/queue/* || fail "the mail is gone"

# Installed again it runs again, as a new package does.
apt-get install -y "./$1"
healthy
zmctl queue | grep ann@later.example || fail "what waited is gone"
apt-get remove -y zmailer

# Installed where an administrator starts services himself.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
apt-get install -y "./$1"
[ "$(systemctl is-active zmailer.target)" = inactive ] || fail "it was started against the policy"
systemctl is-enabled zmailer.target
rm /usr/sbin/policy-rc.d
zmctl start
healthy
zmctl queue | grep ann@later.example || fail "what waited is gone"
apt-get purge -y zmailer
[ ! -e /etc/zmailer/zmailer.conf ] || fail "zmailer.conf is still there"
grep -q 'it stays' $spool/queue/* || fail "the mail is gone"
