//! The group of processes that this rank belongs to, from the environment variables of a launcher.

/// Default port of the first rank if `MASTER_PORT` is not set; the same as in PyTorch.
const PORT: u16 = 29_500;

/// Environment variables of each launcher: the rank, the number of ranks, the local rank, and the number of local
/// ranks.
const LAUNCHERS: [[&str; 4]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
];

/// The rank of this process, and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Rank of this process among the processes of its machine.
    pub(super) local_rank: usize,
    /// Network address of the first rank.
    pub(super) address: String,
    pub(super) port: u16,
}

impl Group {
    /// Reads the group from environment variables. `variable` returns the value of a variable.
    ///
    /// # Errors
    /// The variables are missing or inconsistent.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let number = |name: &str| match variable(name) {
            None => Ok(None),
            Some(text) => match text.trim().parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("{name}: expected a number, found '{text}'")),
            },
        };
        for [rank, size, local_rank, local_size] in LAUNCHERS {
            let (Some(own), Some(count)) = (number(rank)?, number(size)?) else {
                continue;
            };
            if own >= count || count > 1 << 20 {
                return Err(format!(
                    "{rank} is {own} and {size} is {count}; expected a rank from 0 to below the number of ranks"
                ));
            }
            let on_one_machine = count == 1 || number(local_size).ok().flatten() == Some(count);
            let local = number(local_rank)?.or(on_one_machine.then_some(own));
            let address = variable("MASTER_ADDR").filter(|address| !address.trim().is_empty());
            let address = match (address, on_one_machine) {
                (Some(address), _) => address.trim().to_owned(),
                (None, true) => "127.0.0.1".into(),
                (None, false) => {
                    return Err(
                        "ranks on several machines connect to the machine of rank 0; set MASTER_ADDR to its address \
                                (and MASTER_PORT to a free port on it)"
                            .into(),
                    );
                }
            };
            let port = match number("MASTER_PORT")? {
                None => PORT,
                Some(port) => u16::try_from(port).map_err(|_| format!("MASTER_PORT: expected a port, found {port}"))?,
            };
            // The process that started the ranks already listens on the port.
            let is_taken = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|is| is.eq_ignore_ascii_case("true"));
            return Ok(Group {
                rank: own,
                size: count,
                local_rank: local
                    .ok_or_else(|| format!("{rank} is set, but {local_rank}, which selects the GPU, is not"))?,
                address,
                port: port.wrapping_add(u16::from(is_taken)),
            });
        }
        Err(
            "this process belongs to no group: start it with mpirun, torchrun or Slurm, or set RANK, WORLD_SIZE, \
             LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process"
                .into(),
        )
    }

    /// Returns the index of this rank's GPU among `count` GPUs of this machine.
    ///
    /// # Errors
    /// There are too few GPUs.
    pub(super) fn device(&self, count: usize) -> Result<usize, String> {
        match (self.local_rank, count) {
            // The launcher has assigned this GPU to the process: it is the only one that the process sees.
            (_, 1) => Ok(0),
            (local, count) if local < count => Ok(local),
            (local, count) => Err(format!(
                "this is process {local} of this machine, which has {count} GPUs: start one process per GPU"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(variables: &[(&str, &str)]) -> Result<Group, String> {
        Group::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_tell_the_rank_and_where_the_first_is() {
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "1234"),
        ];
        let expected = Group {
            rank: 5,
            size: 8,
            local_rank: 1,
            address: "node0".into(),
            port: 1234,
        };
        assert_eq!(group(&torchrun), Ok(expected));
        let agent: Vec<_> = torchrun
            .into_iter()
            .chain([("TORCHELASTIC_USE_AGENT_STORE", "True")])
            .collect();
        assert_eq!(group(&agent).map(|group| group.port), Ok(1235));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let found = group(&mpi).expect("a group");
        assert_eq!(
            (found.rank, found.local_rank, found.address.as_str(), found.port),
            (1, 1, "127.0.0.1", PORT)
        );
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("MASTER_ADDR", "a"),
        ];
        assert_eq!(group(&slurm).map(|group| (group.rank, group.local_rank)), Ok((3, 1)));
    }

    #[test]
    fn variables_that_make_no_sense_are_errors() {
        for (variables, words) in [
            (&[][..], "belongs to no group"),
            (&[("RANK", "0")], "belongs to no group"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "expected a rank from 0"),
            (
                &[("RANK", "x"), ("WORLD_SIZE", "2")],
                "RANK: expected a number, found 'x'",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
                "MASTER_ADDR",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
                "LOCAL_RANK",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "70000")],
                "MASTER_PORT: expected a port, found 70000",
            ),
        ] {
            let error = group(variables).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn each_rank_of_a_machine_has_a_gpu_of_its_own() {
        let mpi = [
            ("RANK", "2"),
            ("WORLD_SIZE", "3"),
            ("LOCAL_RANK", "2"),
            ("MASTER_ADDR", "a"),
        ];
        let group = group(&mpi).expect("a group");
        assert_eq!((group.device(4), group.device(1)), (Ok(2), Ok(0)));
        assert!(group.device(2).expect_err("too few").contains("2 GPUs"));
    }
}
