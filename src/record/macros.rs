//! The macros that implement records from lists of fields.

/// Implements [`Record`](super::Record).
///
/// ```text
/// record!(Struct { field, cache = expression, program(argument), pending into(expression) });
/// record!(enum Enum { Unit, Tuple(field), Pair(one, other), Struct { field }, Unsaved(..) });
/// ```
///
/// The list has all fields, or all variants:
///
/// * `field` is a [`Record`](super::Record);
/// * `field = expression` is not saved. The expression, which may use the fields before it, is its value in the restored struct;
/// * `field(argument)` is restored with an argument: it is a [`RecordWith`](super::RecordWith);
/// * `field into(expression)` is a [`State`](super::State), which is loaded into the value of the expression;
/// * `Unsaved(..)` is a variant that is saved as null, and so cannot be restored.
///
/// More forms:
///
/// * `record!(impl<P: Record> Struct<P> {...})` is for a generic type;
/// * `record!(with(name: Type) Struct {...})` implements [`RecordWith`](super::RecordWith). Expressions in the list use the argument by
///   its name, which must not be that of a field;
/// * `record!(Struct {...} => Self::check)` calls a function with the restored struct, which returns it, or an error;
/// * `record!(Wrapper as Inner)` saves a struct around one value as that value;
/// * `record!(Name as text)` uses `Display` and `FromStr`;
/// * `record!(Number as u64, Number::get, Number::new)` saves what the first function makes of the value. The second function gets that
///   back, and returns `None` if it is not valid.
macro_rules! record {
    // A field of `$to`.
    (@put $to:ident $field:ident) => {
        $to.field(stringify!($field), $field);
    };
    (@put $to:ident $field:ident ($with:expr)) => {
        $to.member(stringify!($field), |to| $crate::record::RecordWith::save($field, to));
    };
    (@put $to:ident $field:ident into ($new:expr)) => {
        $to.member(stringify!($field), |to| $crate::record::State::save($field, to));
    };
    (@put $to:ident $field:ident = $value:expr) => {};
    // The place of a field, which has the name of the field.
    (@place $field:ident) => {
        let mut $field = None;
    };
    (@place $field:ident ($with:expr)) => {
        let mut $field = $crate::record::With(None, |from: &mut $crate::record::Loader| {
            $crate::record::RecordWith::restore(from, $with)
        });
    };
    (@place $field:ident into ($new:expr)) => {
        let mut $field = $crate::record::Loaded(Some($new));
    };
    (@place $field:ident = $value:expr) => {
        let mut $field = $crate::record::Read($crate::record::Loader::skip);
    };
    // The value of a field.
    (@take $field:ident = $value:expr) => {
        let $field = $value;
    };
    (@take $field:ident) => {
        let $field = $crate::record::read($field);
    };
    (@take $field:ident $($how:tt)*) => {
        let $field = $crate::record::read($field.0);
    };
    // An object with the fields.
    (@save $to:ident $($field:ident $(($with:expr))? $(into ($new:expr))? $(= $value:expr)?),* $(,)?) => {{
        $to.open(b'{');
        $($crate::record::record!(@put $to $field $(($with))? $(into ($new))? $(= $value)?);)*
        $to.close(b'}');
    }};
    // Reads such an object: a variable for each field.
    (@restore $from:ident $($field:ident $(($with:expr))? $(into ($new:expr))? $(= $value:expr)?),* $(,)?) => {
        $($crate::record::record!(@place $field $(($with))? $(into ($new))? $(= $value)?);)*
        $from.object(&[$(stringify!($field)),*], &mut [$(&mut $field),*])?;
        $($crate::record::record!(@take $field $(($with))? $(into ($new))? $(= $value)?);)*
    };
    // The methods of a struct.
    (@struct [$($with:ident: $of:ty)?] $to:ident $from:ident
        [$($field:ident $(($arg:expr))? $(into ($new:expr))? $(= $value:expr)?),* $(,)?] [$($check:expr)?]) => {
        #[inline(never)]
        #[allow(unused_variables)]
        fn save<'a>(&'a self, $to: &mut $crate::record::Saver<'a>) {
            let Self { $($field),* } = self;
            $crate::record::record!(@save $to $($field $(($arg))? $(into ($new))? $(= $value)?),*);
        }

        #[inline(never)]
        fn restore(
            $from: &mut $crate::record::Loader,
            $($with: Self::With<'_>)?
        ) -> Result<Self, $crate::record::RecordError> {
            $crate::record::record!(@restore $from $($field $(($arg))? $(into ($new))? $(= $value)?),*);
            let restored = Self { $($field),* };
            $(let restored = $check(restored)?;)?
            Ok(restored)
        }
    };
    // The pattern of a variant.
    (@pattern $variant:ident) => {
        Self::$variant
    };
    (@pattern $variant:ident (..)) => {
        Self::$variant(..)
    };
    (@pattern $variant:ident ($($field:ident $(($with:expr))?),*)) => {
        Self::$variant($($field),*)
    };
    (@pattern $variant:ident {$($field:ident $(($with:expr))? $(= $value:expr)?),* $(,)?}) => {
        Self::$variant { $($field),* }
    };
    (@save_variant $to:ident $variant:ident) => {
        $to.string(stringify!($variant))
    };
    (@save_variant $to:ident $variant:ident (..)) => {
        $to.null()
    };
    (@save_variant $to:ident $variant:ident ($field:ident)) => {{
        $to.variant(stringify!($variant));
        $crate::record::Record::save($field, $to);
        $to.close(b'}');
    }};
    (@save_variant $to:ident $variant:ident ($field:ident($with:expr))) => {{
        $to.variant(stringify!($variant));
        $crate::record::RecordWith::save($field, $to);
        $to.close(b'}');
    }};
    (@save_variant $to:ident $variant:ident ($($fields:tt)*)) => {
        $crate::record::record!(@save_variant $to $variant {$($fields)*})
    };
    (@save_variant $to:ident $variant:ident {$($fields:tt)*}) => {{
        $to.variant(stringify!($variant));
        $crate::record::record!(@save $to $($fields)*);
        $to.close(b'}');
    }};
    // Returns the variant.
    (@restore_variant $from:ident $variant:ident) => {
        return Ok(Self::$variant)
    };
    (@restore_variant $from:ident $variant:ident (..)) => {
        ()
    };
    (@restore_variant $from:ident $variant:ident ($field:ident)) => {{
        let $field = $crate::record::Record::restore($from);
        let $field = $field.map_err(|error| error.inside(stringify!($variant)))?;
        $from.expect(b'}')?;
        return Ok(Self::$variant($field));
    }};
    (@restore_variant $from:ident $variant:ident ($field:ident($with:expr))) => {{
        let $field = $crate::record::RecordWith::restore($from, $with);
        let $field = $field.map_err(|error| error.inside(stringify!($variant)))?;
        $from.expect(b'}')?;
        return Ok(Self::$variant($field));
    }};
    (@restore_variant $from:ident $variant:ident ($($field:ident),*)) => {{
        $crate::record::record!(@restore $from $($field),*);
        $from.expect(b'}')?;
        return Ok(Self::$variant($($field),*));
    }};
    (@restore_variant $from:ident $variant:ident {$($field:ident $(($with:expr))? $(= $value:expr)?),* $(,)?}) => {{
        $crate::record::record!(@restore $from $($field $(($with))? $(= $value)?),*);
        $from.expect(b'}')?;
        return Ok(Self::$variant { $($field),* });
    }};
    (@enum [$($g:ident: $bound:path),*] $type:ty {
        $($variant:ident $(($($tuple:tt)*))? $({$($fields:tt)*})?),* $(,)?
    }) => {
        impl<$($g: $bound),*> $crate::record::Record for $type {
            #[inline(never)]
            #[allow(unused_variables)]
            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) {
                match self {
                    $($crate::record::record!(@pattern $variant $(($($tuple)*))? $({$($fields)*})?) => {
                        $crate::record::record!(@save_variant to $variant $(($($tuple)*))? $({$($fields)*})?)
                    })*
                }
            }

            #[inline(never)]
            fn restore(
                from: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                enum Index { $($variant),* }
                let index = from.variant(&[$(stringify!($variant)),*])?;
                $(if index == Index::$variant as usize {
                    $crate::record::record!(
                        @restore_variant from $variant $(($($tuple)*))? $({$($fields)*})?
                    )
                })*
                Err($crate::record::RecordError::new("an unknown value"))
            }
        }
    };
    (impl<$($g:ident: $bound:path),*> enum $type:ty { $($variants:tt)* }) => {
        $crate::record::record!(@enum [$($g: $bound),*] $type { $($variants)* });
    };
    (enum $type:ty { $($variants:tt)* }) => {
        $crate::record::record!(@enum [] $type { $($variants)* });
    };
    (impl<$($g:ident: $bound:path),*> $type:ty { $($fields:tt)* } $(=> $check:expr)?) => {
        impl<$($g: $bound),*> $crate::record::Record for $type {
            $crate::record::record!(@struct [] to from [$($fields)*] [$($check)?]);
        }
    };
    (impl<$($g:ident: $bound:path),*> $type:ty as $inner:ty, $save:expr, $restore:expr) => {
        $crate::record::record!(@as [$($g: $bound),*] $type, $inner, $save, $restore);
    };
    (with($with:ident: $of:ty) $type:ty { $($fields:tt)* } $(=> $check:expr)?) => {
        impl $crate::record::RecordWith for $type {
            type With<'w> = $of;

            $crate::record::record!(@struct [$with: $of] to from [$($fields)*] [$($check)?]);
        }
    };
    ($type:ty { $($fields:tt)* } $(=> $check:expr)?) => {
        impl $crate::record::Record for $type {
            $crate::record::record!(@struct [] to from [$($fields)*] [$($check)?]);
        }
    };
    ($type:ty as text) => {
        impl $crate::record::Record for $type {
            #[inline(never)]
            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) {
                to.display(self);
            }

            #[inline(never)]
            fn restore(
                from: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                from.parse()
            }
        }
    };
    (@as [$($g:ident: $bound:path),*] $type:ty, $inner:ty, $save:expr, $restore:expr) => {
        impl<$($g: $bound),*> $crate::record::Record for $type {
            fn is_default(&self) -> bool {
                $crate::record::Saver::converts_to_default::<Self, $inner>(self, $save)
            }

            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) {
                to.converted::<Self, $inner>(self, $save);
            }

            fn restore(
                from: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                from.converted::<$inner, Self>($restore)
            }

            fn missing() -> Option<Self> {
                <$inner as $crate::record::Record>::missing().and_then($restore)
            }
        }
    };
    ($type:ty as $inner:ty, $save:expr, $restore:expr) => {
        $crate::record::record!(@as [] $type, $inner, $save, $restore);
    };
    ($type:ty as $inner:ty) => {
        impl $crate::record::Record for $type {
            fn is_default(&self) -> bool {
                $crate::record::Record::is_default(&self.0)
            }

            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) {
                $crate::record::Record::save(&self.0, to);
            }

            fn restore(
                from: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                <$inner as $crate::record::Record>::restore(from).map(Self)
            }

            fn missing() -> Option<Self> {
                <$inner as $crate::record::Record>::missing().map(Self)
            }
        }
    };
}

/// Implements [`State`](super::State) for a struct from the list of all its fields. `keep field` is a setting, which stays as it is,
/// `into field` is a [`State`](super::State) itself, and `field(argument)` is restored with an argument, which may use the fields
/// after it as references.
macro_rules! state {
    (@list [$($head:tt)*] [$($done:tt)*] keep $field:ident, $($rest:tt)*) => {
        $crate::record::state!(@list [$($head)*] [$($done)* {keep $field}] $($rest)*);
    };
    (@list [$($head:tt)*] [$($done:tt)*] into $field:ident, $($rest:tt)*) => {
        $crate::record::state!(@list [$($head)*] [$($done)* {into $field}] $($rest)*);
    };
    (@list [$($head:tt)*] [$($done:tt)*] $field:ident $(($with:expr))?, $($rest:tt)*) => {
        $crate::record::state!(@list [$($head)*] [$($done)* {set $field $(($with))?}] $($rest)*);
    };
    (@list [[$($g:ident: $bound:path),*] $type:ty] [$({$how:ident $field:ident $(($with:expr))?})*]) => {
        impl<$($g: $bound),*> $crate::record::State for $type {
            #[inline(never)]
            #[allow(unused_variables)]
            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) {
                let Self { $($field),* } = self;
                to.open(b'{');
                $($crate::record::state!(@put to $how $field $(($with))?);)*
                to.close(b'}');
            }

            #[inline(never)]
            #[allow(unused_variables)]
            fn load(
                &mut self,
                from: &mut $crate::record::Loader,
            ) -> Result<(), $crate::record::RecordError> {
                let Self { $($field),* } = self;
                $($crate::record::state!(@place $how $field $(($with))?);)*
                from.object(&[$(stringify!($field)),*], &mut [$(&mut $field),*])
            }
        }
    };
    (@put $to:ident keep $field:ident) => {};
    (@put $to:ident into $field:ident) => {
        $to.member(stringify!($field), |to| $crate::record::State::save($field, to));
    };
    (@put $to:ident set $field:ident) => {
        $to.field(stringify!($field), $field);
    };
    (@put $to:ident set $field:ident ($with:expr)) => {
        $to.member(stringify!($field), |to| $crate::record::RecordWith::save($field, to));
    };
    (@place keep $field:ident) => {
        let mut $field = $crate::record::Read($crate::record::Loader::skip);
    };
    (@place into $field:ident) => {
        let mut $field = $crate::record::Load($field);
    };
    (@place set $field:ident) => {
        let mut $field = $crate::record::Set($field);
    };
    (@place set $field:ident ($with:expr)) => {
        let mut $field = $crate::record::Read(|from: &mut $crate::record::Loader| {
            *$field = $crate::record::RecordWith::restore(from, $with)?;
            Ok(())
        });
    };
    (impl<$($g:ident: $bound:path),*> $type:ty { $($fields:tt)* }) => {
        $crate::record::state!(@list [[$($g: $bound),*] $type] [] $($fields)*);
    };
    ($type:ty { $($fields:tt)* }) => {
        $crate::record::state!(@list [[] $type] [] $($fields)*);
    };
}

/// Reads an object by hand: a [`Place`](super::Place) for each member.
macro_rules! object {
    (@place $name:ident) => {
        $name
    };
    (@place $name:ident: $place:expr) => {
        $place
    };
    ($from:ident { $($name:ident $(: $place:expr)?),* $(,)? }) => {
        $from.object(
            &[$(stringify!($name)),*],
            &mut [$(&mut $crate::record::object!(@place $name $(: $place)?)),*],
        )
    };
}

pub(crate) use {object, record, state};
