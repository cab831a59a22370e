//! Macros that declare the types of the interface, and describe them for the C header and for tests.

/// A structure as the header shows it.
#[derive(Clone, Copy, Debug)]
pub struct StructDescription {
    /// Name in Rust; in C it begins with `Mgn`.
    pub name: &'static str,
    /// Documentation; each entry is a line.
    pub doc: &'static [&'static str],
    /// Size in bytes.
    pub size: usize,
    /// Fields in order.
    pub fields: &'static [FieldInfo],
    /// Functions that follow the fields, each a pointer.
    pub functions: &'static [FunctionInfo],
}

/// A field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Name of the field.
    pub name: &'static str,
    /// Documentation; each entry is a line.
    pub doc: &'static [&'static str],
    /// Type in Rust.
    pub ty: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
}

/// A pointer to a function in a structure.
#[derive(Clone, Copy, Debug)]
pub struct FunctionInfo {
    /// Name of the function.
    pub name: &'static str,
    /// Documentation; each entry is a line.
    pub doc: &'static [&'static str],
    /// Names of the parameters and their types in Rust.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Type of the result in Rust; empty, if there is none.
    pub result: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
}

/// Declares structures with the sizes that they must have. A different size is a compile error.
macro_rules! structures {
    ($list:ident; $(
        $(#[doc = $doc:literal])*
        struct $name:ident [$size:literal] {
            $( $(#[doc = $field_doc:literal])* $field:ident: $ty:ty, )*
        } $( functions {
            $( $(#[doc = $fn_doc:literal])* fn $function:ident($($parameter:ident: $pty:ty),* $(,)?) $(-> $result:ty)?; )*
        } )?
    )*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $( $(#[doc = $field_doc])* pub $field: $ty, )*
                $($( $(#[doc = $fn_doc])* pub $function: Option<unsafe extern "C" fn($($pty),*) $(-> $result)?>, )*)?
            }
            const _: () = assert!(size_of::<$name>() == $size, "the layout of a structure has changed");
        )*
        /// Every structure of the interface, in the order of the header.
        pub const $list: &[$crate::StructDescription] = &[$(
            $crate::StructDescription {
                name: stringify!($name),
                doc: &[$($doc),*],
                size: size_of::<$name>(),
                fields: &[$(
                    $crate::FieldInfo {
                        name: stringify!($field),
                        doc: &[$($field_doc),*],
                        ty: stringify!($ty),
                        offset: std::mem::offset_of!($name, $field),
                    },
                )*],
                functions: &[$($(
                    $crate::FunctionInfo {
                        name: stringify!($function),
                        doc: &[$($fn_doc),*],
                        parameters: &[$((stringify!($parameter), stringify!($pty))),*],
                        result: concat!($(stringify!($result))?),
                        offset: std::mem::offset_of!($name, $function),
                    },
                )*)?],
            },
        )*];
    };
}

/// Declares numbers with their names in C.
macro_rules! numbers {
    ($list:ident; $( $(#[doc = $doc:literal])* $name:ident: $ty:ident = $value:literal; )*) => {
        $( $(#[doc = $doc])* pub const $name: $ty = $value; )*
        /// Every number of the interface: name, value, documentation.
        pub const $list: &[(&str, u64, &[&str])] = &[$((stringify!($name), $value as u64, &[$($doc),*])),*];
    };
}

pub(crate) use {numbers, structures};
