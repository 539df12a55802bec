//! Kinds of sources, each mounted by a shell script. Sources with missing programs or kernel support are
//! counted.

use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_tests::TestDir;
use terrace_tests::leftovers;
use terrace_tests::process;

#[derive(Debug)]
pub(super) struct Kind {
    pub name: &'static str,
    /// Mounts the source on `$AT`; `$BACK` is an empty directory for its content.
    mount: &'static str,
    /// Programs used by the script.
    programs: &'static [&'static str],
    /// A restart must find a warm tier: the file system has lasting identities.
    pub is_warm_after_restart: bool,
}

impl Kind {
    const fn fuse(name: &'static str, programs: &'static [&'static str], mount: &'static str) -> Kind {
        Kind { name, mount, programs, is_warm_after_restart: false }
    }

    /// A file system of the kernel in an image of 400 MiB.
    const fn image(name: &'static str, programs: &'static [&'static str], mount: &'static str) -> Kind {
        Kind { name, mount, programs, is_warm_after_restart: true }
    }
}

/// Sources of `make test`; the others run in `make sources` only.
pub(super) const SHORT: [Kind; 3] = [
    Kind::fuse("bindfs", &["bindfs"], "bindfs $BACK $AT"),
    Kind::fuse(
        "sshfs",
        &["sshfs"],
        r#"printf '#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n' > $TOP/sftp; chmod +x $TOP/sftp
           sshfs -o ssh_command=$TOP/sftp here:$BACK $AT"#,
    ),
    Kind::fuse(
        "fuse-overlayfs",
        &["fuse-overlayfs"],
        "mkdir $BACK/lower $BACK/upper $BACK/work
         fuse-overlayfs -o lowerdir=$BACK/lower,upperdir=$BACK/upper,workdir=$BACK/work $AT",
    ),
];

pub(super) const LONG: [Kind; 20] = [
    Kind::image("ext4", &["mkfs.ext4"], "mkfs.ext4 -q -m 0 $TOP/image; mount -o loop $TOP/image $AT"),
    Kind::image("xfs", &["mkfs.xfs"], "mkfs.xfs -q $TOP/image; mount -o loop $TOP/image $AT"),
    Kind::image("btrfs", &["mkfs.btrfs"], "mkfs.btrfs -q $TOP/image; mount -o loop $TOP/image $AT"),
    Kind::image("f2fs", &["mkfs.f2fs"], "mkfs.f2fs -q $TOP/image; mount -o loop $TOP/image $AT"),
    Kind::fuse("vfat", &["mkfs.vfat"], "mkfs.vfat $TOP/image; mount -o loop $TOP/image $AT"),
    Kind::fuse("exfat", &["mkfs.exfat"], "mkfs.exfat $TOP/image; mount -t exfat -o loop $TOP/image $AT"),
    Kind::fuse("tmpfs", &[], "mount -t tmpfs -o size=400m tmpfs $AT"),
    Kind::fuse(
        "overlay",
        &[],
        "mkdir $BACK/lower $BACK/upper $BACK/work
         mount -t overlay -o lowerdir=$BACK/lower,upperdir=$BACK/upper,workdir=$BACK/work overlay $AT",
    ),
    Kind::fuse(
        "overlay-on-tmpfs",
        &[],
        "mount -t tmpfs -o size=400m tmpfs $BACK; mkdir $BACK/lower $BACK/upper $BACK/work
         mount -t overlay -o lowerdir=$BACK/lower,upperdir=$BACK/upper,workdir=$BACK/work overlay $AT",
    ),
    Kind::fuse("bind", &[], "mount --bind $BACK $AT"),
    Kind::fuse("mergerfs", &["mergerfs"], "mkdir $BACK/one $BACK/two; mergerfs $BACK/one:$BACK/two $AT"),
    Kind::fuse(
        "unionfs",
        &["unionfs"],
        "mkdir $BACK/one $BACK/two; unionfs -o cow $BACK/one=RW:$BACK/two=RO $AT",
    ),
    Kind::fuse("encfs", &["encfs"], "encfs --standard --extpass='echo secret' $BACK $AT"),
    Kind::fuse(
        "gocryptfs",
        &["gocryptfs"],
        "gocryptfs -q -init -scryptn 10 -extpass 'echo secret' $BACK; gocryptfs -q -extpass 'echo secret' $BACK $AT",
    ),
    Kind::fuse("cryfs", &["cryfs"], "echo secret | CRYFS_FRONTEND=noninteractive cryfs $BACK $AT"),
    Kind::fuse(
        "rclone",
        &["rclone"],
        "rclone mount --daemon --vfs-cache-mode writes --cache-dir $TOP/cache --config /dev/null $BACK $AT",
    ),
    Kind::fuse("ntfs-3g", &["ntfs-3g", "mkntfs"], "mkntfs -qQF $TOP/image; ntfs-3g $TOP/image $AT"),
    Kind::fuse("fuse2fs", &["fuse2fs"], "mkfs.ext4 -q -m 0 $TOP/image; fuse2fs -o fakeroot $TOP/image $AT"),
    Kind::fuse(
        "exfat-fuse",
        &["mount.exfat-fuse", "mkfs.exfat"],
        "mkfs.exfat $TOP/image; mount.exfat-fuse $TOP/image $AT",
    ),
    Kind::fuse(
        "squashfs",
        &["mksquashfs"],
        "echo content > $BACK/file; mkdir $BACK/plain $BACK/mount $BACK/fast $BACK/run $BACK/leased
         mksquashfs $BACK $TOP/packed -quiet -no-progress; mount -o loop $TOP/packed $AT",
    ),
];

/// A mounted source; unmounted when dropped.
#[derive(Debug)]
pub(super) struct Source {
    pub at: PathBuf,
    top: TestDir,
    mount: String,
}

impl Source {
    /// Mounts a source of this kind. The error is the reason why this machine cannot.
    pub(super) fn mount(kind: &Kind) -> Result<Source, String> {
        let lacks = |program: &&&str| !is_installed(program);
        if let Some(program) = kind.programs.iter().find(lacks) {
            return Err(format!("{program} is not installed"));
        }
        let top = TestDir::new(&format!("source-{}", kind.name));
        top.sub("back");
        let image = std::fs::File::create(top.path().join("image")).expect("an image");
        image.set_len(400 << 20).expect("a sparse image");
        let source = Source { at: top.sub("at"), top, mount: format!("set -eu\n{}", kind.mount) };
        source.run()?;
        Ok(source)
    }

    fn run(&self) -> Result<(), String> {
        let top = self.top.path();
        let mut shell = Command::new("/bin/bash");
        shell.arg("-c").arg(&self.mount).current_dir(top);
        shell.env("TOP", top).env("BACK", top.join("back")).env("AT", &self.at);
        let path = std::env::var("PATH").unwrap_or_default();
        let mounted = process::run(shell.env("PATH", format!("{path}:/usr/sbin:/sbin")), 120);
        if mounted.status.success() { Ok(()) } else { Err(mounted.stderr.trim().replace('\n', "; ")) }
    }

    /// Unmounts the source, which terrace must not keep busy.
    pub(super) fn unmount(&self) -> Result<(), String> {
        let outcome = process::run(Command::new("umount").arg(&self.at), 120);
        if outcome.status.success() {
            Ok(())
        } else {
            Err(format!("umount of the source: {}", outcome.stderr.trim()))
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        leftovers::clear(self.top.path());
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin").split(':').any(|dir| Path::new(dir).join(program).exists())
}
